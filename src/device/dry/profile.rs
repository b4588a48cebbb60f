//! What a device has answered, saved, so that a dry run elsewhere can plan as if it were there.

use super::Dry;
use crate::device::backend::{Query, Terms};
use crate::device::{Device, Settings};
use crate::error::{Error, Result};
use crate::memory::{Meter, Purpose, Taker};
use crate::plan::Candidate;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

/// The layout of the text; another one is refused.
const VERSION: u32 = 1;
/// Answers that are kept; later ones are not.
const KEPT: usize = 16_384;

/// Every question that a device was asked, with its candidates.
#[derive(Default)]
pub(in crate::device) struct Asked(Mutex<HashMap<(Query, Terms), Vec<Candidate>>>);

impl Asked {
    pub(in crate::device) fn note(&self, query: &Query, terms: Terms, candidates: &[Candidate]) {
        let mut asked = self.0.lock();
        if asked.len() < KEPT {
            asked.insert((*query, terms), candidates.to_vec());
        }
    }
}

/// A device as it is saved. Questions are keyed by how they print for developers, with every size: they
/// are only compared.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Profile {
    version: u32,
    name: String,
    pub(super) description: String,
    pub(super) identity: String,
    /// Bytes that the device holds for itself.
    pub(super) charged: u64,
    pub(super) streams: bool,
    pub(super) shared_per_block: Option<usize>,
    workspace_cap: Option<u64>,
    deterministic: bool,
    allow_tf32: bool,
    answers: BTreeMap<String, Vec<Answer>>,
}

/// A candidate as it is saved; it is never run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Answer {
    name: String,
    split: String,
    workspace: u64,
    seconds: f64,
    deterministic: bool,
}

fn key(query: &Query, terms: Terms) -> String {
    format!("{query:?} {terms:?}")
}

impl Profile {
    pub(super) fn candidates(&self, query: &Query, terms: Terms) -> Vec<Candidate> {
        let unknown = || Answer {
            name: Candidate::UNKNOWN.into(),
            split: String::new(),
            // At the most a workspace of the whole cap.
            workspace: if terms.cap == u64::MAX { 0 } else { terms.cap },
            seconds: 1.0,
            deterministic: true,
        };
        let candidate = |answer: &Answer| Candidate {
            name: Cow::Owned(answer.name.clone()),
            split: answer.split.clone(),
            workspace: answer.workspace,
            seconds: answer.seconds,
            deterministic: answer.deterministic,
            code: 0,
            params: [0; 4],
        };
        match self.answers.get(&key(query, terms)) {
            Some(answers) => answers.iter().map(candidate).collect(),
            None => vec![candidate(&unknown())],
        }
    }
}

impl Device {
    /// The device for dry runs elsewhere, as JSON (feature `serde`): what it is and holds for itself, its
    /// settings, and the candidates with their workspaces of every operation that it, or a [dry
    /// twin](Device::dry) of it, has been asked for so far. Run the step that is to be predicted first, on
    /// a twin if it is not to be computed.
    ///
    /// ```
    /// use capgrad::{Conv1d, DType, Device, Tape, Tensor};
    /// fn step(device: &Device) -> capgrad::Result<u64> {
    ///     let conv = Conv1d::builder(8, 16, 3).build(device)?;
    ///     let tape = Tape::new();
    ///     let x = tape.constant(Tensor::rand([4, 8, 100], DType::F32, device)?);
    ///     conv.forward(&x)?.square()?.mean()?.backward()?;
    ///     Ok(device.report().peak)
    /// }
    /// # fn main() -> capgrad::Result<()> {
    /// let device = Device::new_cpu(Default::default())?;
    /// let here = step(&device.dry())?;
    /// let saved = device.profile()?;
    /// // On another machine, without that device:
    /// let elsewhere = Device::from_profile(&saved)?;
    /// assert_eq!(step(&elsewhere)?, here);
    /// assert!(elsewhere.report().bounds.is_empty());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] where it cannot be written.
    pub fn profile(&self) -> Result<String> {
        let backend = self.backend();
        let settings = self.settings();
        let answers = self.asked().0.lock();
        let answer = |candidate: &Candidate| Answer {
            name: candidate.name.to_string(),
            split: candidate.split.clone(),
            workspace: candidate.workspace,
            seconds: candidate.seconds,
            deterministic: candidate.deterministic,
        };
        let profile = Profile {
            version: VERSION,
            name: self.name().trim_start_matches("dry ").to_owned(),
            description: self.description(),
            identity: self.identity(),
            charged: backend.charged(),
            streams: backend.streams(),
            shared_per_block: backend.shared_per_block(),
            workspace_cap: settings.cap,
            deterministic: settings.deterministic,
            allow_tf32: settings.allow_tf32,
            answers: answers
                .iter()
                .map(|((query, terms), found)| {
                    (key(query, *terms), found.iter().map(answer).collect())
                })
                .collect(),
        };
        serde_json::to_string(&profile)
            .map_err(|error| Error::argument("profile", "self", self, error.to_string()))
    }

    /// A dry device from the text of [`Device::profile`] (feature `serde`), with the settings of the device
    /// that it is of and no memory limit. Where an operation is not in it, the workspace is taken to be the
    /// whole cap (none, without a cap), which [`Report::bounds`](crate::Report::bounds) then says.
    ///
    /// # Errors
    /// [`Error::Argument`] for a text that is no profile, or one of another version of this crate.
    pub fn from_profile(profile: &str) -> Result<Device> {
        let refused = |reason: String| {
            let text: String = profile.chars().take(40).collect();
            Error::argument("from_profile", "profile", text, reason)
        };
        let profile: Profile = serde_json::from_str(profile)
            .map_err(|error| refused(format!("expected the text of `Device::profile`: {error}")))?;
        if profile.version != VERSION {
            let version = profile.version;
            let reason = format!("version {version}; this is {VERSION}: save it again");
            return Err(refused(reason));
        }
        let name = format!("dry {}", profile.name);
        let meter = Meter::new(name.clone());
        let charged = meter.reserve(profile.charged, Purpose::Other, Taker::of("device"))?;
        let settings = Settings {
            cap: profile.workspace_cap,
            deterministic: profile.deterministic,
            allow_tf32: profile.allow_tf32,
            ..Settings::default()
        };
        let host = profile.streams.then(|| Device::cpu().dry());
        let backend = Dry::from_profile(profile, charged);
        Ok(Device::with_host(meter, name, backend, host).with_settings(settings))
    }
}
