use super::*;
use crate::device::spec::{GemmSpec, Strided};
use crate::dtype::DType;

fn key(cap: Option<u64>, deterministic: bool) -> PlanKey {
    let strided = Strided { batch: 0, row: 1, col: 1 };
    let spec = GemmSpec { batch: 1, m: 1, n: 1, k: 1, a: strided, b: strided };
    PlanKey {
        query: Query::Gemm(spec, DType::F32),
        cap,
        ranking: Ranking::Predicted,
        deterministic,
        allow_tf32: false,
    }
}

fn candidate(name: &'static str, workspace: u64, seconds: f64) -> Candidate {
    Candidate {
        name: name.into(),
        split: String::new(),
        workspace,
        seconds,
        deterministic: name != "atomic",
        code: 0,
        params: [0; 4],
    }
}

fn plan(key: &PlanKey, candidates: Vec<Candidate>) -> Result<Plan> {
    weigh("matmul", key, "cpu", "matmul".into(), candidates, None)
}

#[test]
fn a_candidate_over_the_cap_never_runs_however_fast() {
    let candidates = vec![candidate("fft", u64::MAX, 1e-9), candidate("direct", 0, 1.0)];
    let plan = plan(&key(Some(0), false), candidates).unwrap();
    assert_eq!(plan.taken().name, "direct");
    assert_eq!(plan.largest_over_cap().unwrap().workspace, u64::MAX);
}

#[test]
fn within_five_per_cent_the_least_workspace_is_taken() {
    let candidates = vec![
        candidate("big", 1000, 1.00),
        candidate("small", 10, 1.04),
        candidate("none", 0, 1.06),
    ];
    let plan = plan(&key(None, false), candidates).unwrap();
    assert_eq!(plan.taken().name, "small");
}

#[test]
fn deterministic_drops_what_is_not() {
    let candidates = vec![candidate("atomic", 0, 1.0), candidate("ordered", 0, 2.0)];
    assert_eq!(plan(&key(None, false), candidates.clone()).unwrap().taken().name, "atomic");
    let plan = plan(&key(None, true), candidates).unwrap();
    assert_eq!(plan.taken().name, "ordered");
    assert_eq!(plan.weighed()[0].verdict, Verdict::NotDeterministic);
}

#[test]
fn one_that_fails_while_it_is_timed_is_rejected_and_the_search_goes_on() {
    let candidates = vec![candidate("broken", 0, 0.1), candidate("good", 0, 1.0)];
    let mut measure = |candidate: &Candidate, _: bool| match &*candidate.name {
        "broken" => Err(Error::custom("launch", "illegal address")),
        _ => Ok(Some(3.0)),
    };
    let plan =
        weigh("matmul", &key(None, false), "cpu", "m".into(), candidates, Some(&mut measure))
            .unwrap();
    assert_eq!(plan.taken().name, "good");
    assert!(
        plan.weighed().iter().any(
            |w| matches!(&w.verdict, Verdict::Failed(why) if why == "launch: illegal address")
        )
    );
}

#[test]
fn measured_times_overrule_predicted_ones() {
    let candidates = vec![candidate("is fast", 0, 0.7), candidate("said fast", 0, 0.1)];
    let mut measure = |candidate: &Candidate, _: bool| {
        Ok(Some(if &*candidate.name == "is fast" { 0.5 } else { 2.0 }))
    };
    let plan =
        weigh("matmul", &key(None, false), "cpu", "m".into(), candidates, Some(&mut measure))
            .unwrap();
    assert_eq!(plan.taken().name, "is fast");
}

/// The likely ones come first; what is predicted to take 8 times as long as the fastest was, from then on
/// not at all, and ranks after all that were timed.
#[test]
fn what_is_slower_by_far_is_not_timed() {
    let said = [("slow", 8.1), ("likely", 0.5), ("fastest", 1.0), ("far", 4.1), ("nan", f64::NAN)];
    let candidates = said.map(|(name, seconds)| candidate(name, 0, seconds)).to_vec();
    let mut order = Vec::new();
    let mut measure = |candidate: &Candidate, hopeless: bool| {
        if hopeless {
            return Ok(None);
        }
        order.push(candidate.name.to_string());
        // In another unit than the predictions, as on a device that they do not fit.
        Ok(Some(if &*candidate.name == "fastest" { 100.0 } else { 200.0 }))
    };
    let plan =
        weigh("matmul", &key(None, false), "cpu", "m".into(), candidates, Some(&mut measure))
            .unwrap();
    assert_eq!(order, ["likely", "fastest", "far", "nan"]);
    assert_eq!(plan.taken().name, "fastest");
    let last = plan.weighed().last().unwrap();
    assert_eq!((&*last.candidate.name, last.measured), ("slow", None));
    assert!(format!("{plan}").contains("slower by far, as predicted"));
}

#[test]
fn a_time_that_is_not_a_number_ranks_last() {
    let candidates = vec![candidate("nan", 0, f64::NAN), candidate("good", 5, 1.0)];
    assert_eq!(plan(&key(None, false), candidates).unwrap().taken().name, "good");
}

#[test]
fn nothing_under_the_cap_is_an_error_that_names_the_smallest() {
    let error = plan(&key(Some(5), false), vec![candidate("a", 9, 1.0), candidate("b", 7, 2.0)])
        .unwrap_err();
    assert!(matches!(error, Error::WorkspaceCap { cap: 5, smallest: 7, .. }));
}
