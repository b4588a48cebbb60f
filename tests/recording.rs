//! What a recording says: who held what at the peak, by operation, pass and scope, the largest pieces,
//! workspaces with their plans, and how it prints. The figures are worked out by hand.

mod support;

use capgrad::{
    ByPurpose, Conv1d, DType, Device, KIB, MIB, Padding, Pass, Purpose, Report, Result, Tape,
    Tensor,
};
use support::workloads::Workload;
use support::{Kind, devices, kinds};

fn ones(elements: usize, device: &Device) -> Tensor {
    Tensor::ones([elements], DType::F32, device).unwrap()
}

#[test]
fn what_was_alive_at_the_peak_is_listed_by_operation_and_scope() {
    for device in devices() {
        let before = ones(256, &device);
        let held = device.live_bytes();
        device.set_recording(true);
        let scope = device.scope("load");
        let inner = device.scope("labels");
        let labels = ones(512, &device);
        drop(inner);
        let twins = (ones(1024, &device), ones(1024, &device));
        drop(scope);
        drop(before);
        let tape = Tape::new();
        // The peak: two of 4 KiB, 2 KiB of labels, and 4 KiB of the square.
        let x = tape.variable(twins.0.clone()).unwrap();
        let y = x.square().unwrap();
        drop((labels, twins));
        drop(y);
        device.set_recording(false);
        let after = ones(1 << 20, &device);
        let recorded = device.report().recorded.unwrap();
        drop(after);
        assert!(recorded.complete);
        assert_eq!(recorded.peak, held - KIB + 14 * KIB);
        let lines: Vec<_> = recorded
            .alive_at_peak
            .iter()
            .filter(|held| held.op != "before the recording")
            .map(|a| {
                (a.op.as_str(), a.pass.unwrap(), a.scope.as_str(), a.purpose, a.bytes, a.count)
            })
            .collect();
        let expected = [
            ("ones", Pass::Forward, "load", Purpose::Other, 4 * KIB, 2),
            ("square", Pass::Forward, "", Purpose::Activation, 4 * KIB, 1),
            ("ones", Pass::Forward, "load/labels", Purpose::Other, 2 * KIB, 1),
        ];
        assert_eq!(lines, expected);
        // Of what was there before only what was not given back, by purpose.
        let earlier: u64 = recorded
            .alive_at_peak
            .iter()
            .filter(|held| held.op == "before the recording")
            .map(|held| held.bytes)
            .sum();
        assert_eq!(earlier, held - KIB);
        let largest: Vec<_> =
            recorded.largest.iter().map(|a| (a.op.as_str(), a.bytes, a.count)).collect();
        assert_eq!(largest, [("ones", 4096, 2), ("square", 4096, 1), ("ones", 2048, 1)]);
        let ones = recorded.operations.iter().find(|report| report.op == "ones").unwrap();
        assert_eq!((ones.allocations, ones.taken, ones.own_peak), (3, 10 * KIB, 10 * KIB));
        let scopes: Vec<_> =
            recorded.timeline.scopes.iter().map(|s| (s.name.as_str(), s.depth)).collect();
        assert_eq!(scopes, [("load", 0), ("load/labels", 1)]);
        let live = &recorded.timeline.live;
        // One of 4 KiB is on the tape yet.
        let last = live[live.len() - 1].total();
        assert_eq!((live[0].total(), last), (held, held - KIB + 4 * KIB));
        assert_eq!(live[recorded.timeline.peak_at].total(), recorded.peak);
    }
}

#[test]
fn a_step_is_told_apart_by_pass_and_workspaces_by_plan() {
    for kind in kinds() {
        let device = kind.plain();
        device.set_workspace_cap(MIB);
        let conv = Conv1d::builder(16, 16, 5).padding(Padding::Same).build(&device).unwrap();
        let x = Tensor::rand([32, 16, 100], DType::F32, &device).unwrap();
        device.reset_peak();
        device.set_recording(true);
        let tape = Tape::new();
        let x = tape.variable(x).unwrap();
        let loss = conv.forward(&x).unwrap().square().unwrap().mean().unwrap();
        loss.backward().unwrap();
        let report = device.report();
        let recorded = report.recorded.as_ref().unwrap();
        // Input and result have 32·16·100 numbers each.
        let size = 32 * 16 * 100 * 4;
        let of = |pass, op: &str| {
            recorded.operations.iter().find(|o| o.pass == pass && o.op == op).cloned().unwrap()
        };
        assert!(of(Pass::Forward, "conv1d").taken >= size);
        let forward = of(Pass::Forward, "square");
        assert_eq!((forward.allocations, forward.taken, forward.workspace), (1, size, 0));
        assert!(of(Pass::Backward, "conv1d").taken >= size + 16 * 16 * 5 * 4);
        let passes: Vec<_> =
            recorded.timeline.passes.iter().map(|phase| phase.name.as_str()).collect();
        // What is let go after `backward` is the caller's.
        assert_eq!(passes, ["forward", "backward", "forward"]);
        // Each workspace is that of the plan's taken candidate.
        let plans = conv.plan([32, 16, 100]).unwrap();
        for workspace in &recorded.workspaces {
            let plan = plans.iter().find(|plan| plan.operation() == workspace.operation).unwrap();
            assert_eq!(plan.taken().to_string(), workspace.algorithm);
            assert_eq!((plan.taken().workspace, workspace.count), (workspace.bytes, 1));
        }
        let taken = plans.iter().filter(|plan| plan.taken().workspace > 0).count();
        assert_eq!(recorded.workspaces.len(), taken);
        let most = recorded.workspaces.iter().map(|w| w.bytes).max().unwrap_or(0);
        assert_eq!(most, report.peaks[Purpose::Workspace]);
    }
}

/// What a report prints, with everything in it, is at most 100 columns wide.
fn printed(report: &Report) -> Result<String> {
    let text = report.to_string();
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
    }
    Ok(text)
}

#[test]
fn a_report_prints_within_100_columns() {
    for kind in kinds() {
        let device = kind.plain();
        device.set_recording(true);
        device.set_memory_limit(Some(device.live_bytes() + (1 << 40))).unwrap();
        let outer = device.scope("a scope whose name is longer than anybody would want to read it");
        let _inner = device.scope("another one of that kind, within it");
        let mut workload = Workload::conv(&device, 100, 1).unwrap();
        workload.step().unwrap();
        drop(outer);
        let report = device.report();
        let text = printed(&report).unwrap();
        for expected in ["adam", "optimiser", "conv1d", "alive at the recorded peak", "…", "+"] {
            assert!(text.contains(expected), "no {expected} in\n{text}");
        }
        // Weights of 576 × 1024 numbers, their gradient and two moments are the largest pieces.
        assert!(text.contains("2.25 MiB"), "{text}");
        // A name is one line, and of many scopes the first are printed.
        for i in 0..70 {
            drop(device.scope(&format!("a\nb {i}")));
        }
        let text = printed(&device.report()).unwrap();
        assert!(text.contains("a b 3 ") && text.contains(" more\n"), "{text}");
        let dry = device.dry();
        dry.set_recording(true);
        Workload::conv(&dry, 100, 1).unwrap().step().unwrap();
        assert!(printed(&dry.report()).unwrap().starts_with("dry "));
    }
}

#[test]
fn a_report_is_json_with_every_figure() {
    let device = Kind::Cpu.plain();
    device.set_recording(true);
    let scope = device.scope("step");
    let x = ones(1024, &device);
    drop(scope);
    let report = device.report();
    let json: serde_json::Value = serde_json::to_value(&report).unwrap();
    assert_eq!(json["peak"], 4096);
    assert_eq!(json["live"]["other"], 4096);
    assert_eq!(json["live"]["workspace"], 0);
    assert_eq!(json["workspace_cap"], 64 << 20);
    assert_eq!(json["limit"], serde_json::Value::Null);
    assert_eq!(json["scopes"][0]["path"], "step");
    assert_eq!(json["recorded"]["alive_at_peak"][0]["op"], "ones");
    assert_eq!(json["recorded"]["alive_at_peak"][0]["pass"], "forward");
    // In rows: parameter, activation, gradient, optimiser, sparse, workspace, other.
    assert_eq!(json["recorded"]["timeline"]["live"][1][6], 0);
    assert_eq!(
        json["recorded"]["timeline"]["live"][2],
        serde_json::json!([0, 0, 0, 0, 0, 0, 4096])
    );
    drop(x);
}

#[test]
fn nothing_is_recorded_unasked_and_a_reset_begins_anew() {
    let device = Kind::Cpu.plain();
    let _x = ones(10, &device);
    assert!(device.report().recorded.is_none());
    device.set_recording(true);
    let _y = ones(20, &device);
    device.reset_peak();
    let recorded = device.report().recorded.unwrap();
    assert_eq!((recorded.peak, recorded.timeline.live.len()), (120, 1));
    device.set_recording(false);
    // What was seen is kept until the next one begins.
    let _z = ones(30, &device);
    assert_eq!(device.report().recorded.unwrap().peak, 120);
    device.set_recording(true);
    assert_eq!(device.report().recorded.unwrap().peak, 240);
    device.set_recording(false);
    device.reset_peak();
    assert!(device.report().recorded.is_none());
    assert_eq!(ByPurpose::default().total(), 0);
}

/// A dry device holds sizes that add up to more than a number does.
#[test]
fn sums_of_absurd_sizes_are_no_panic() {
    let dry = Device::cpu().dry();
    dry.set_recording(true);
    for _ in 0..9 {
        drop(Tensor::zeros([1 << 60], DType::F32, &dry).unwrap());
    }
    let report = dry.report();
    let recorded = report.recorded.as_ref().unwrap();
    assert_eq!((recorded.peak, recorded.operations[0].taken), (1 << 62, u64::MAX));
    printed(&report).unwrap();
    recorded.timeline.to_svg(900, 400).unwrap();
}

#[test]
fn a_recording_ends_by_itself_before_it_grows_for_ever() {
    let device = Kind::Cpu.plain();
    device.set_recording(true);
    for _ in 0..(1 << 19) + 10 {
        drop(ones(1, &device));
    }
    let recorded = device.report().recorded.unwrap();
    assert!(!recorded.complete);
    assert_eq!(recorded.timeline.live.len(), (1 << 20) + 1);
    assert!(device.report().to_string().contains("cut short"));
    assert!(recorded.timeline.to_svg(900, 400).unwrap().contains("cut short"));
}
