//! The model that corrects predicted times: boosted trees, fitted to measurements of `cargo bench
//! --bench ranking -- --json` by `benches/fit_ranking.py`, which writes `fit.bin`.
//!
//! The file, little-endian: `capgrfit`; u32 version, 1; u16 features; u16 methods; u32 trees; f32
//! start; f32 step. Then every method's name: u8 bytes and the bytes. Then for every feature
//! the thresholds that cut it into bins, ascending: u8 count and that many f32. Then every tree, each
//! node before its left subtree and that before its right: u8 feature and u8 bin, going left where
//! the feature's bin is at most that; a leaf is u8 255 and i16, in steps. The model's value is the
//! start and the leaf of each tree, added up.

use std::sync::OnceLock;

const MAGIC: &[u8; 8] = b"capgrfit";
const VERSION: u32 = 1;
const LEAF: u8 = 255;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Or [`LEAF`].
    feature: u8,
    bin: u8,
    /// How many nodes on the right subtree is; of a leaf its value in steps.
    next: i16,
}

#[derive(Debug)]
pub(super) struct Model {
    methods: Vec<String>,
    /// By feature.
    thresholds: Vec<Vec<f32>>,
    nodes: Vec<Node>,
    /// Where the trees begin.
    roots: Vec<u32>,
    start: f32,
    step: f32,
}

/// The model that is built in; `None` if it cannot be read.
pub(super) fn model() -> Option<&'static Model> {
    static MODEL: OnceLock<Option<Model>> = OnceLock::new();
    MODEL.get_or_init(|| Model::parse(include_bytes!("fit.bin"))).as_ref()
}

/// What is left of the file.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<usize> {
        self.array().map(|bytes| u16::from_le_bytes(bytes).into())
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn f32(&mut self) -> Option<f32> {
        self.array().map(f32::from_le_bytes).filter(|value| value.is_finite())
    }

    /// One tree.
    fn tree(&mut self, features: usize, nodes: &mut Vec<Node>) -> Option<()> {
        // Nodes whose right subtree is still to come.
        let mut open: Vec<usize> = Vec::new();
        loop {
            let feature = self.u8()?;
            if feature != LEAF {
                if usize::from(feature) >= features {
                    return None;
                }
                open.push(nodes.len());
                nodes.push(Node { feature, bin: self.u8()?, next: 0 });
                continue;
            }
            let next = self.array().map(i16::from_le_bytes)?;
            nodes.push(Node { feature, bin: 0, next });
            let Some(above) = open.pop() else { return Some(()) };
            nodes[above].next = i16::try_from(nodes.len() - above).ok()?;
        }
    }
}

impl Model {
    fn parse(file: &[u8]) -> Option<Model> {
        let mut reader = Reader(file);
        if reader.array().as_ref() != Some(MAGIC) || reader.u32() != Some(VERSION) {
            return None;
        }
        let (features, methods, trees) = (reader.u16()?, reader.u16()?, reader.u32()?);
        let (start, step) = (reader.f32()?, reader.f32()?);
        let methods: Option<Vec<String>> = (0..methods)
            .map(|_| {
                let bytes = reader.u8()?;
                Some(std::str::from_utf8(reader.take(bytes.into())?).ok()?.to_owned())
            })
            .collect();
        let thresholds: Option<Vec<Vec<f32>>> = (0..features)
            .map(|_| {
                let count = reader.u8()?;
                (0..count).map(|_| reader.f32()).collect()
            })
            .collect();
        let (mut nodes, mut roots) = (Vec::new(), Vec::new());
        for _ in 0..trees {
            roots.push(u32::try_from(nodes.len()).ok()?);
            reader.tree(features, &mut nodes)?;
        }
        let (methods, thresholds) = (methods?, thresholds?);
        reader.0.is_empty().then_some(Model { methods, thresholds, nodes, roots, start, step })
    }

    /// The number that stands for a method among the features; `None` for one never measured.
    pub(super) fn method(&self, name: &str) -> Option<usize> {
        self.methods.iter().position(|method| method == name)
    }

    /// `None` where the features are not as many as the model has.
    pub(super) fn value(&self, features: &[f64]) -> Option<f64> {
        if features.len() != self.thresholds.len() {
            return None;
        }
        let bins: Vec<usize> = std::iter::zip(features, &self.thresholds)
            .map(|(&value, bounds)| bounds.partition_point(|&bound| f64::from(bound) < value))
            .collect();
        let leaf = |root: u32| {
            let mut at = root as usize;
            loop {
                let node = self.nodes[at];
                if node.feature == LEAF {
                    return i64::from(node.next);
                }
                let left = bins[usize::from(node.feature)] <= usize::from(node.bin);
                at += if left { 1 } else { node.next as usize };
            }
        };
        let steps: i64 = self.roots.iter().map(|&root| leaf(root)).sum();
        Some(f64::from(self.start) + steps as f64 * f64::from(self.step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two features with 1 and 2 thresholds; a tree of three leaves, and one that is a leaf.
    fn small() -> Vec<u8> {
        let mut file = MAGIC.to_vec();
        file.extend(VERSION.to_le_bytes());
        file.extend([2u16, 2].map(u16::to_le_bytes).concat());
        file.extend(2u32.to_le_bytes());
        file.extend([1.5f32, 0.25].map(f32::to_le_bytes).concat());
        file.extend(b"\x01a\x02bc");
        file.extend([&[1][..], &3f32.to_le_bytes()].concat());
        file.extend([&[2][..], &(-1f32).to_le_bytes(), &4f32.to_le_bytes()].concat());
        // Feature 1 at most 4: feature 0 at most 3: 2 steps, else -3; else 100. Then 7 for all.
        file.extend([1, 1, 0, 0, 255, 2, 0, 255, 0xfd, 0xff, 255, 100, 0]);
        file.extend([255, 7, 0]);
        file
    }

    #[test]
    fn trees_add_up() {
        let model = Model::parse(&small()).expect("well formed");
        let at = |a, b| model.value(&[a, b]);
        assert_eq!(at(3.0, 4.0), Some(1.5 + 9.0 * 0.25));
        assert_eq!(at(3.1, -9.0), Some(1.5 + 4.0 * 0.25));
        assert_eq!(at(0.0, 4.1), Some(1.5 + 107.0 * 0.25));
        // No order, so the first bin.
        assert_eq!(at(f64::NAN, f64::NAN), at(3.0, -1.0));
        assert_eq!(model.value(&[1.0]), None);
        assert_eq!(["a", "b", "bc"].map(|name| model.method(name)), [Some(0), None, Some(1)]);
    }

    #[test]
    fn a_malformed_file_is_no_model() {
        let good = small();
        for bytes in 0..good.len() {
            assert!(Model::parse(&good[..bytes]).is_none(), "cut to {bytes}");
        }
        assert!(Model::parse(&[&good[..], &[0]].concat()).is_none());
        let changed = |at: usize, to: u8| {
            let mut file = good.clone();
            file[at] = to;
            Model::parse(&file)
        };
        assert!(changed(0, b'C').is_none(), "magic");
        assert!(changed(8, 2).is_none(), "version");
        assert!(changed(good.len() - 16, 2).is_none(), "a feature that there is not");
        for at in 0..good.len() {
            for to in [0, 1, 127, 255] {
                // Whatever it says, it is read or refused, and then evaluated.
                let _ = changed(at, to).map(|model| model.value(&[0.0, 0.0]));
            }
        }
    }

    #[test]
    fn the_embedded_model_is_read() {
        let model = model().expect("fit.bin is well formed");
        assert!(model.methods.len() > 20);
        assert!(model.thresholds.iter().all(|bounds| bounds.is_sorted()));
        for (index, name) in model.methods.iter().enumerate() {
            assert_eq!(model.method(name), Some(index));
            for value in [0.0, 3.0, 12.0] {
                let mut features = vec![value; model.thresholds.len()];
                features[0] = index as f64;
                let factor = model.value(&features).expect("as many features");
                assert!(factor.is_finite() && factor.abs() < 20.0, "{name}: {factor}");
            }
        }
    }
}
