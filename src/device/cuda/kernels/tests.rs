use super::*;
use std::path::{Path, PathBuf};

/// The kernel folder: of the checkout that this was built from, or of the one it is run in.
fn folder() -> PathBuf {
    let built = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels"));
    if built.is_dir() { built } else { PathBuf::from("kernels") }
}

/// FNV-1a, 64 bits, as `.ci/build-ptx` computes it.
fn fnv<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let step = |value: u64, &byte: &u8| (value ^ byte as u64).wrapping_mul(0x100_0000_01b3);
    let value = parts.into_iter().flatten().fold(0xcbf2_9ce4_8422_2325, step);
    format!("{value:016x}")
}

fn files(extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder()).expect("the kernels are there");
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|found| found == extension));
    found.sort();
    found
}

/// The text of a file and of the headers that it includes, each once, in their order.
fn sources(path: &Path, seen: &mut Vec<PathBuf>) -> Vec<Vec<u8>> {
    let text = std::fs::read(path).unwrap();
    let mut parts = Vec::new();
    for line in String::from_utf8(text.clone()).unwrap().lines() {
        let header = line.strip_prefix("#include \"").and_then(|rest| rest.split('"').next());
        let Some(header) = header.map(|name| folder().join(name)) else { continue };
        if !seen.contains(&header) {
            seen.push(header.clone());
            parts.extend(sources(&header, seen));
        }
    }
    parts.push(text);
    parts
}

/// What `.ci/build-ptx` would make: file name, sources.
fn expected() -> Vec<(String, Vec<Vec<u8>>)> {
    let mut all = Vec::new();
    for path in files("cu") {
        let source = sources(&path, &mut Vec::new());
        let text = std::fs::read_to_string(&path).unwrap();
        let family = path.file_stem().unwrap().to_str().unwrap();
        let mut lines = text.lines();
        let types = lines.next().unwrap().strip_prefix("// types:").expect("a list of types");
        let second = lines.next().unwrap();
        let variants = second.strip_prefix("// variants:").unwrap_or("");
        let oldest = second.strip_prefix("// oldest:").map_or("", str::trim);
        for scalar in types.split_whitespace() {
            let parts = [family, scalar, oldest, "ptx"].into_iter().filter(|part| !part.is_empty());
            all.push((parts.collect::<Vec<_>>().join("."), source.clone()));
            for variant in variants.split_whitespace() {
                all.push((format!("{family}.{scalar}.{variant}.ptx"), source.clone()));
            }
        }
    }
    all
}

#[test]
fn ptx_is_built_from_the_sources_as_they_are() {
    let expected = expected();
    for (name, source) in &expected {
        let text = std::fs::read_to_string(folder().join("ptx").join(name))
            .unwrap_or_else(|_| panic!("{name} is missing: run .ci/build-ptx"));
        let (source_line, rest) = text.split_once('\n').unwrap();
        let (text_line, body) = rest.split_once('\n').unwrap();
        let parts = source.iter().map(|part| &part[..]);
        let stamp = fnv(parts.chain([name.as_bytes()]));
        assert_eq!(source_line, format!("// source {stamp}"), "{name}: run .ci/build-ptx");
        assert_eq!(text_line, format!("// text {}", fnv([body.as_bytes()])), "{name} was edited");
    }
    let built = std::fs::read_dir(folder().join("ptx")).unwrap().count();
    assert_eq!(built, expected.len(), "kernels/ptx has files without a source");
}

#[test]
fn every_kernel_is_in_the_ptx_of_its_family() {
    for kernel in ALL {
        let holds = |file: &&Ptx| file.family == kernel.family.0;
        let entry = format!(".entry {}(", kernel.name);
        let mut families = PTX.iter().filter(holds).peekable();
        assert!(families.peek().is_some(), "{kernel:?}: no such family");
        for file in families {
            assert!(file.text.contains(&entry), "{kernel:?} is not in the PTX for {}", file.scalar);
        }
    }
}

#[test]
fn plain_ptx_loads_on_the_oldest_chip_and_driver() {
    for file in PTX {
        let directive = |name: &str| {
            let line = file.text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or("").trim().to_owned()
        };
        let target = directive(".target sm_");
        assert_eq!(target.ends_with('a'), file.only, "{} {}", file.family, file.scalar);
        let target: u32 = target.trim_end_matches('a').parse().unwrap();
        assert_eq!(target, file.chip, "{} {}", file.family, file.scalar);
        if file.chip == 75 || file.only {
            let isa: f64 = directive(".version").parse().unwrap();
            assert!(isa <= 8.0, "{} {}: PTX ISA {isa}", file.family, file.scalar);
        }
    }
}

#[test]
fn the_newest_variant_that_a_chip_takes_comes_first() {
    let family = Family("softmax");
    assert_eq!(family.variants("f32", 75).len(), 1);
    assert!(family.variants("f32", 70).is_empty());
    assert!(family.variants("i64", 90).is_empty());
    let family = Family("conv_warpgroup");
    assert_eq!([80, 89, 90, 100].map(|chip| family.variants("f32", chip).len()), [0, 0, 1, 0]);
}

/// What a block has on every chip without asking for more. So the shapes of tiles, strips and
/// partial sums are the same on a chip with 64 KB as on one with 227.
#[test]
fn static_shared_memory_fits_the_smallest_chip() {
    for file in PTX {
        for line in file.text.lines().filter(|line| line.trim_start().starts_with(".shared")) {
            let bytes = line.rsplit_once('[').and_then(|(_, rest)| rest.split_once(']'));
            let Some((bytes, _)) = bytes else { continue };
            let bytes: usize = bytes.parse().expect("an array of bytes");
            assert!(bytes <= 48 << 10, "{} {}: {line}", file.family, file.scalar);
        }
    }
}
