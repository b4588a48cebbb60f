//! Measured times that are saved and loaded: plans are made from them, and from nothing else.

mod support;

use capgrad::{Conv1d, Device, Error, KIB, Plan, Ranking, Shape, Tensor, Var, Verdict};
use serde_json::{Value, json};
use std::sync::Arc;
use support::{Kind, kinds};

const SHAPE: [usize; 3] = [3, 8, 40];

fn device(kind: Kind) -> Device {
    let device = kind.poisoned();
    device.set_ranking(Ranking::Measured);
    device
}

fn layer(device: &Device) -> Conv1d {
    Conv1d::builder(8, 12, 5).build(device).unwrap()
}

fn forward(device: &Device) {
    layer(device)
        .forward(&Var::from(Tensor::ones(SHAPE, capgrad::DType::F32, device).unwrap()))
        .unwrap();
}

/// The plan of the forward pass.
fn plan(device: &Device) -> Arc<Plan> {
    layer(device).plan(Shape::from(SHAPE)).unwrap().into_iter().next().unwrap()
}

/// What a device has measured of the forward pass, and its only operation.
fn saved(device: &Device) -> (Value, String) {
    let text: Value = serde_json::from_str(&device.measurements().unwrap()).unwrap();
    let question = text["times"].as_object().unwrap().keys().next().unwrap().clone();
    (text, question)
}

/// Every candidate gets a time of our own, the last in the alphabet the shortest; the plan has these times
/// and takes that one, in a run, in a preview and in a dry run.
#[test]
fn plans_are_made_of_the_times_in_the_text() {
    for kind in kinds() {
        let first = device(kind);
        forward(&first);
        let (mut text, question) = saved(&first);
        let times = text["times"][&question].as_object_mut().unwrap();
        assert!(times.len() > 1, "{times:?}");
        for (at, seconds) in times.values_mut().rev().enumerate() {
            *seconds = json!({"Ok": (at + 1) as f64 * 0.125});
        }
        let fastest = times.keys().next_back().unwrap().clone();
        let text = text.to_string();
        let check = |plan: &Plan| {
            let taken = plan.taken();
            assert_eq!(format!("{taken}: {}", taken.workspace), fastest, "{plan}");
            for weighed in plan.weighed() {
                if let Some(seconds) = weighed.measured {
                    assert_eq!((seconds / 0.125).fract(), 0.0, "{plan}");
                }
            }
        };
        let second = device(kind);
        assert_eq!(second.use_measurements(&text).unwrap(), 1);
        check(&plan(&second));
        let dry = second.dry();
        forward(&dry);
        assert!(dry.report().bounds.is_empty());
        check(&plan(&dry));
        forward(&second);
        check(&plan(&second));
        // Saved again, nothing is lost, and nothing is added.
        let again: Value = serde_json::from_str(&second.measurements().unwrap()).unwrap();
        assert_eq!(again, serde_json::from_str::<Value>(&text).unwrap());
        second.forget_plans();
        assert_eq!(saved_number(&second), 0);
    }
}

fn saved_number(device: &Device) -> usize {
    let text: Value = serde_json::from_str(&device.measurements().unwrap()).unwrap();
    text["times"].as_object().unwrap().len()
}

/// One that had failed is not tried again; one that is not in the text is timed.
#[test]
fn failures_are_kept_and_what_is_missing_is_measured() {
    for kind in kinds() {
        let first = device(kind);
        forward(&first);
        let (mut text, question) = saved(&first);
        let times = text["times"][&question].as_object_mut().unwrap();
        for seconds in times.values_mut() {
            *seconds = json!({"Ok": 1e3});
        }
        let failed = times.keys().next().unwrap().clone();
        let missing = times.keys().next_back().unwrap().clone();
        times[&failed] = json!({"Err": "conv1d: illegal address"});
        times.remove(&missing).unwrap();
        let second = device(kind);
        second.use_measurements(&text.to_string()).unwrap();
        forward(&second);
        let plan = plan(&second);
        let find = |name: &str| {
            let of = |w: &&capgrad::Weighed| {
                format!("{}: {}", w.candidate, w.candidate.workspace) == name
            };
            plan.weighed().iter().find(of).unwrap()
        };
        assert_eq!(find(&failed).verdict, Verdict::Failed("conv1d: illegal address".into()));
        // Nothing takes a thousand seconds here.
        assert!(find(&missing).measured.is_some_and(|seconds| seconds < 10.0), "{plan}");
        assert_eq!(find(&missing).verdict, Verdict::Taken);
        let (again, _) = saved(&second);
        assert_eq!(again["times"][&question][&failed], json!({"Err": "conv1d: illegal address"}));
    }
}

#[test]
fn times_hold_under_any_cap() {
    for kind in kinds() {
        let first = device(kind);
        forward(&first);
        let second = device(kind);
        second.use_measurements(&first.measurements().unwrap()).unwrap();
        let whole = plan(&first);
        for cap in [0, 2 * KIB, 64 * KIB] {
            second.set_workspace_cap(cap);
            forward(&second);
            let plan = plan(&second);
            assert!(plan.taken().workspace <= cap);
            for weighed in plan.weighed() {
                let same = |other: &&capgrad::Weighed| {
                    let (a, b) = (&other.candidate, &weighed.candidate);
                    (&a.name, &a.split, a.workspace) == (&b.name, &b.split, b.workspace)
                };
                let before = whole.weighed().iter().find(same).and_then(|other| other.measured);
                if let (Some(before), Some(now)) = (before, weighed.measured) {
                    assert_eq!(before, now);
                }
            }
        }
    }
}

#[test]
fn what_was_measured_elsewhere_is_refused() {
    for kind in kinds() {
        let device = device(kind);
        forward(&device);
        let (text, _) = saved(&device);
        let changed = |key: &str, to: Value| {
            let mut text = text.clone();
            text[key] = to;
            text.to_string()
        };
        let fresh = kind.plain();
        let refused = |text: &str| {
            let error = fresh.use_measurements(text).unwrap_err();
            assert!(matches!(error, Error::Argument { .. }), "{error}");
            error.to_string()
        };
        let error = refused(&changed("device", json!("another chip")));
        assert!(error.contains("another chip") && error.contains("measure again"), "{error}");
        assert!(refused(&changed("capgrad", json!("0.0.1"))).contains("capgrad 0.0.1"));
        assert!(refused(&changed("version", json!(9))).contains("version 9; this is 1"));
        for text in ["", "{}", "[]", "nonsense"] {
            assert!(refused(text).contains("Device::measurements"));
        }
        assert_eq!(saved_number(&fresh), 0);
    }
}
