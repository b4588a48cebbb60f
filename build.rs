//! Embeds the PTX of the CUDA kernels: a table of the files in `kernels/ptx`, which are committed, so
//! that building needs no CUDA. With `CAPGRAD_BUILD_PTX=1` the kernels are compiled anew instead, by
//! the `nvcc` that is found (or named by `NVCC`), for the oldest chip that it supports from 7.5 on.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=kernels");
    println!("cargo:rerun-if-env-changed=CAPGRAD_BUILD_PTX");
    println!("cargo:rerun-if-env-changed=NVCC");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let kernels = root.join("kernels");
    let committed = kernels.join("ptx");
    let rebuild = env::var("CAPGRAD_BUILD_PTX").is_ok_and(|value| value == "1");
    let folder = if rebuild { compile(&kernels, &out) } else { None }.unwrap_or(committed);

    let mut table = "static PTX: &[Ptx] = &[\n".to_owned();
    for path in files(&folder, "ptx") {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("an ASCII name");
        let mut parts = stem.split('.');
        let (family, scalar) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        let chip = parts.next().and_then(|chip| chip.strip_prefix("sm_")).unwrap_or("75");
        // `90a` is for that chip and no newer one.
        let (chip, only) = (chip.trim_end_matches('a'), chip.ends_with('a'));
        writeln!(
            table,
            "    Ptx {{ family: {family:?}, scalar: {scalar:?}, chip: {chip}, \
             only: {only}, text: include_str!({path:?}) }},"
        )
        .expect("a string takes all");
    }
    table.push_str("];\n");
    fs::write(out.join("ptx.rs"), table).expect("OUT_DIR can be written");
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    found.sort();
    found
}

/// Compiles every kernel file for every type that its first line names.
fn compile(kernels: &Path, out: &Path) -> Option<PathBuf> {
    let nvcc = env::var("NVCC").unwrap_or_else(|_| "nvcc".into());
    if Command::new(&nvcc).arg("--version").output().is_err() {
        println!(
            "cargo:warning=CAPGRAD_BUILD_PTX=1, but {nvcc} does not run: the committed PTX is used"
        );
        return None;
    }
    let folder = out.join("ptx");
    fs::create_dir_all(&folder).expect("OUT_DIR can be written");
    for source in files(kernels, "cu") {
        let text = fs::read_to_string(&source).expect("a kernel file is text");
        let types = text.lines().next().and_then(|line| line.strip_prefix("// types:"));
        let family = source.file_stem().and_then(|stem| stem.to_str()).expect("an ASCII name");
        let oldest = text.lines().nth(1).and_then(|line| line.strip_prefix("// oldest: sm_"));
        let (chip, suffix) = match oldest.map(str::trim) {
            Some(chip) => (chip, format!(".sm_{chip}")),
            None => ("75", String::new()),
        };
        for scalar in types.unwrap_or("").split_whitespace() {
            let status = Command::new(&nvcc)
                .args(["--ptx", &format!("-arch=compute_{chip}"), "-std=c++17"])
                .arg(format!("-DSCALAR={scalar}"))
                .arg("-o")
                .arg(folder.join(format!("{family}.{scalar}{suffix}.ptx")))
                .arg(&source)
                .status();
            if !status.is_ok_and(|status| status.success()) {
                panic!("{nvcc} failed on {}; its messages are above", source.display());
            }
        }
    }
    Some(folder)
}
