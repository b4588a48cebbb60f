//! Sparse matrices built from COO, CSR and CSC arrays in any order, with duplicates, against an
//! ordered map; and arrays that are none, each refused with the place that is wrong.

mod support;

use capgrad::{BuildError, DType, Error, SparseMatrix, bf16, f16};
use proptest::prelude::*;
use std::collections::BTreeMap;
use support::sparse::Entries;
use support::{Kind, Numbers, kinds, tensor, values};

fn entries() -> impl Strategy<Value = Entries> {
    (0usize..12, 0usize..12, 0usize..60, any::<u64>())
        .prop_map(|(rows, cols, nnz, seed)| Entries::random(rows, cols, nnz, &mut Numbers(seed)))
}

/// The entries by lines (rows, or columns), within a line in the order given: offsets, indices and
/// values as CSR (CSC) has them.
fn compressed(lines: usize, line: &[usize], index: &[usize], values: &[f64]) -> Compressed {
    let mut out = (vec![0], Vec::new(), Vec::new());
    for at in 0..lines {
        for e in (0..line.len()).filter(|&e| line[e] == at) {
            out.1.push(index[e]);
            out.2.push(values[e]);
        }
        out.0.push(out.1.len());
    }
    out
}

type Compressed = (Vec<usize>, Vec<usize>, Vec<f64>);

/// Values row by row, columns ascending, duplicates added.
fn canonical(entries: &Entries) -> BTreeMap<(usize, usize), f64> {
    let mut map = BTreeMap::new();
    for e in 0..entries.values.len() {
        *map.entry((entries.i[e], entries.j[e])).or_insert(0.0) += entries.values[e];
    }
    map
}

#[track_caller]
fn check(a: &SparseMatrix, entries: &Entries) {
    let map = canonical(entries);
    assert_eq!((a.rows(), a.cols(), a.nnz()), (entries.rows, entries.cols, map.len()));
    // Explicit zeros are kept; sixteenths add up exactly.
    assert_eq!(values(&a.values().unwrap()), map.values().copied().collect::<Vec<_>>());
    assert_eq!(values(&a.to_dense().unwrap()), entries.dense());
    let view = a.transpose();
    assert_eq!((view.rows(), view.cols(), view.bytes()), (a.cols(), a.rows(), a.bytes()));
    assert_eq!(values(&view.to_dense().unwrap()), entries.transposed().dense());
    assert_eq!(values(&view.transpose().to_dense().unwrap()), entries.dense());
    // Offsets of 4 bytes, column indices of 4, and the values.
    assert_eq!(a.bytes(), 4 * (entries.rows + 1) + (4 + a.dtype().size()) * map.len());
}

#[test]
fn every_form_in_any_order_gives_the_same_matrix() {
    let config = ProptestConfig { cases: 1_000, ..ProptestConfig::default() };
    proptest!(config, |(entries in entries())| {
        let Entries { rows, cols, ref i, ref j, values: ref given } = entries;
        let (a, map) = SparseMatrix::from_coo_with_map(rows, cols, i, j, given).unwrap();
        check(&a, &entries);
        let places: Vec<_> = canonical(&entries).into_keys().collect();
        for e in 0..given.len() {
            prop_assert_eq!(places[map.get(e)], (i[e], j[e]));
        }
        let narrow = |indices: &[usize]| indices.iter().map(|&v| v as i32).collect::<Vec<_>>();
        let wide = |indices: &[usize]| indices.iter().map(|&v| v as i64).collect::<Vec<_>>();
        let a = SparseMatrix::from_coo(rows, cols, &narrow(i), &wide(j), given).unwrap();
        check(&a, &entries);

        let (offsets, indices, of_rows) = compressed(rows, i, j, given);
        let a = SparseMatrix::from_csr(rows, cols, &offsets, &indices, &of_rows).unwrap();
        check(&a, &entries);
        // Longer arrays are read only as far as the offsets say.
        let (mut long, mut more) = (narrow(&indices), of_rows.clone());
        (0..3).for_each(|_| { long.push(-7); more.push(f64::NAN); });
        let a = SparseMatrix::from_csr(rows, cols, &wide(&offsets), &long, &more).unwrap();
        check(&a, &entries);

        let (offsets, indices, of_cols) = compressed(cols, j, i, given);
        let unsigned: Vec<u32> = offsets.iter().map(|&v| v as u32).collect();
        let a = SparseMatrix::from_csc(rows, cols, &unsigned, &indices, &of_cols).unwrap();
        check(&a, &entries);
    });
}

#[test]
fn a_dense_matrix_and_back_in_every_dtype() {
    for device in kinds().map(Kind::plain) {
        let base = device.live_bytes();
        for dtype in DType::FLOATS {
            for (rows, cols) in [(0, 0), (0, 4), (3, 0), (1, 1), (5, 7), (40, 3)] {
                let mut data = Numbers(rows as u64).sixteenths(rows * cols);
                data.iter_mut().step_by(3).for_each(|value| *value = 0.0);
                let dense = tensor(&data, [rows, cols], dtype, &device);
                let a = SparseMatrix::from_dense(&dense).unwrap();
                assert_eq!((a.dtype(), a.device()), (dtype, &device));
                assert_eq!(a.nnz(), data.iter().filter(|value| **value != 0.0).count());
                assert_eq!(values(&a.to_dense().unwrap()), data);
            }
        }
        assert_eq!(device.live_bytes(), base);
    }
}

#[test]
fn duplicates_of_halves_add_up_in_order_of_the_dtype() {
    let ones = vec![f16::ONE; 5];
    let a = SparseMatrix::from_coo(1, 1, &[0; 5], &[0; 5], &ones).unwrap();
    assert_eq!((a.nnz(), values(&a.values().unwrap())), (1, vec![5.0]));
    let a = SparseMatrix::from_coo(1, 1, &[0; 3], &[0; 3], vec![bf16::ONE; 3]).unwrap();
    assert_eq!(values(&a.values().unwrap()), [3.0]);
}

#[test]
fn a_symmetric_matrix_is_known_only_if_it_is_one() {
    let a = SparseMatrix::from_coo(3, 3, &[0, 1, 2, 2], &[1, 0, 2, 2], &[2.0, 2.0, 1.0, 0.5]);
    let a = a.unwrap();
    assert!(!a.is_symmetric());
    assert!(a.symmetric().unwrap().is_symmetric());
    assert!(a.transpose().symmetric().unwrap().is_symmetric());
    let values = SparseMatrix::from_coo(2, 2, &[0, 1], &[1, 0], &[2.0f32, 3.0]).unwrap();
    let pattern = SparseMatrix::from_coo(2, 2, &[0], &[1], &[2.0f32]).unwrap();
    let shape = SparseMatrix::from_coo(2, 3, &[0], &[0], &[2.0f32]).unwrap();
    for not in [values, pattern, shape] {
        let error = not.symmetric().unwrap_err();
        assert!(matches!(error, Error::Argument { op: "symmetric", .. }), "{error}");
    }
}

/// The error, which must name each of `parts`.
#[track_caller]
fn refused(result: capgrad::Result<SparseMatrix>, parts: &[&str]) -> BuildError {
    let error = result.unwrap_err();
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text} names not {parts:?}");
    match error {
        Error::Sparse(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn coordinates_outside_the_matrix_are_refused_with_their_place() {
    let coo = |i: &[i64], j: &[i64]| SparseMatrix::from_coo(3, 4, i, j, vec![1.0f32; i.len()]);
    refused(coo(&[0, 3], &[0, 0]), &["entry 1", "row 3", "3 rows"]);
    refused(coo(&[0, 2], &[0, 4]), &["entry 1", "column 4", "4 columns"]);
    refused(coo(&[0, 1, -1], &[0, 0, 0]), &["2", "-1"]);
    refused(coo(&[0, 1], &[0, i64::MIN]), &["1", &i64::MIN.to_string()]);
    refused(coo(&[1 << 32], &[0]), &["entry 0", "4294967296"]);
    let far = SparseMatrix::from_coo(3, 4, &[0usize], &[usize::MAX], &[1.0f32]);
    refused(far, &[&usize::MAX.to_string()]);
    let wrapped = SparseMatrix::from_coo(3, 4, &[u32::MAX], &[0u32], &[1.0f32]);
    refused(wrapped, &["4294967295"]);
    let empty = SparseMatrix::from_coo(0, 0, &[0], &[0], &[1.0f32]);
    refused(empty, &["row 0", "0 rows"]);
    let lengths = SparseMatrix::from_coo(3, 4, &[0, 1], &[0], &[1.0f32, 2.0]);
    refused(lengths, &["col_indices", "1", "2"]);
    let lengths = SparseMatrix::from_coo(3, 4, &[0], &[0, 1], &[1.0f32, 2.0]);
    refused(lengths, &["row_indices", "1", "2"]);
    let values = SparseMatrix::from_coo(3, 4, &[0], &[0], &[1.0f32, 2.0]);
    refused(values, &["row_indices", "1", "2"]);
}

#[test]
fn offsets_that_are_none_are_refused_with_their_place() {
    let csr = |o: &[i64], j: &[i64]| SparseMatrix::from_csr(3, 4, o, j, vec![1.0f32; j.len()]);
    refused(csr(&[0, 2, 1, 3], &[0, 1, 2]), &["line 1", "2", "1"]);
    refused(csr(&[0, 1, 2], &[0, 1]), &["4 offsets", "3"]);
    refused(csr(&[0, 1, 2, 2, 2], &[0, 1]), &["4 offsets", "5"]);
    refused(csr(&[], &[]), &["4 offsets", "0"]);
    refused(csr(&[1, 1, 2, 2], &[0, 1]), &["first offset", "1"]);
    refused(csr(&[0, 1, 2, 9], &[0, 1]), &["9", "2"]);
    refused(csr(&[0, 1, -2, 2], &[0, 1]), &["-2"]);
    refused(csr(&[0, 1, 1, 2], &[0, 4]), &["entry 1", "column 4"]);
    refused(csr(&[0, 1, 1, 2], &[0, -4]), &["1", "-4"]);
    let short = SparseMatrix::from_csr(1, 4, &[0, 2], &[0, 1], &[1.0f32]);
    refused(short, &["values", "2", "1"]);
    let csc = SparseMatrix::from_csc(3, 2, &[0, 1, 2], &[0, 3], &[1.0f32, 2.0]);
    refused(csc, &["entry 1", "row 3", "3 rows"]);
    let csc = SparseMatrix::from_csc(3, 2, &[0, 2, 1], &[0, 1], &[1.0f32, 2.0]);
    refused(csc, &["line 1", "2", "1"]);
    let owned =
        |o: Vec<i32>, j: Vec<i32>| SparseMatrix::from_csr_owned(2, 2, o, j, vec![1.0f32; 2]);
    assert!(owned(vec![0, 1, 2], vec![1, 0]).is_ok());
    refused(owned(vec![0, 1, 2], vec![1, 2]), &["entry 1", "column 2"]);
    refused(owned(vec![0, 3, 2], vec![1, 0]), &["line 1", "3", "2"]);
}

/// cupy#9490, pytorch#102520: offsets past 2³¹ are numbers, not wrapped ones.
#[test]
fn offsets_and_sides_past_32_bits_do_not_wrap() {
    for last in [(1i64 << 31) - 127, (1 << 31) + (1 << 20), (1 << 32) + 1, i64::MAX] {
        let csr = SparseMatrix::from_csr(1, 4, &[0, last], &[0], &[1.0f32]);
        let error = refused(csr, &[&last.to_string()]);
        assert!(matches!(error, BuildError::LastOffset { len: 1, .. }), "{error}");
        let csc = SparseMatrix::from_csc(4, 1, &[0, last], &[0], &[1.0f32]);
        refused(csc, &[&last.to_string()]);
    }
    let none: [i32; 0] = [];
    for side in [1usize << 31, (1 << 32) + 2, usize::MAX] {
        let values: [f32; 0] = [];
        let tall = SparseMatrix::from_coo(side, 1, &none, &none, &values);
        let error = refused(tall, &["rows", &side.to_string()]);
        assert!(matches!(error, BuildError::TooLarge { .. }));
        refused(SparseMatrix::from_coo(1, side, &none, &none, &values), &["columns"]);
    }
    let wide = SparseMatrix::from_coo(1, i32::MAX as usize, &[0], &[i32::MAX - 1], &[1.0f32]);
    assert_eq!(wide.unwrap().bytes(), 8 + 8);
}
