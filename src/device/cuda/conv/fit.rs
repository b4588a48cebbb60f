//! Factors of the predicted times, fitted to measurements of `cargo bench --bench ranking -- --json`
//! by `benches/fit_ranking.py`, which writes this file.

/// How many numbers a factor depends on: `Cost::features`.
pub(super) const FEATURES: usize = 28;

/// The coefficients of a method, by pass, name and number type.
pub(super) fn factors(class: &str) -> Option<&'static [f32; FEATURES]> {
    FITTED.binary_search_by(|(name, _)| (*name).cmp(class)).ok().map(|index| &FITTED[index].1)
}

static FITTED: &[(&str, [f32; FEATURES])] = &[];
