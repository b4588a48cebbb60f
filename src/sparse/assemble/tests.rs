//! Building against a naive map, and each error with the place that it names.

use super::*;
use half::f16;
use std::collections::BTreeMap;

fn lcg(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *seed >> 33
}

/// Stored entries in order, each with its value summed in the order given.
fn naive<T: Float>(entries: &[(usize, usize, T)]) -> BTreeMap<(usize, usize), f64> {
    let mut map = BTreeMap::new();
    for &(i, j, v) in entries {
        map.entry((i, j)).and_modify(|s| *s += v.to_f64()).or_insert(v.to_f64());
    }
    map
}

fn check<T: Float>(rows: usize, entries: &[(usize, usize, T)], built: &Built<T>) {
    let expected = naive(entries);
    let csr = &built.csr;
    assert_eq!(csr.row_offsets.len(), rows + 1);
    assert_eq!(csr.values.len(), expected.len());
    assert_eq!(csr.col_indices.len(), expected.len());
    let mut stored = expected.iter();
    for r in 0..rows {
        for e in csr.row_offsets.get(r)..csr.row_offsets.get(r + 1) {
            let (&(i, j), &sum) = stored.next().unwrap();
            assert_eq!((r, csr.col_indices[e] as usize), (i, j));
            assert_eq!(csr.values[e], T::from_f64(sum));
        }
    }
    if let Some(map) = &built.entry_map {
        let places: BTreeMap<_, _> = expected.keys().enumerate().map(|(k, &at)| (at, k)).collect();
        for (e, &(i, j, _)) in entries.iter().enumerate() {
            assert_eq!(map.get(e), places[&(i, j)]);
        }
    }
}

fn random<T: Float>(
    seed: &mut u64,
    rows: usize,
    cols: usize,
    nnz: usize,
) -> Vec<(usize, usize, T)> {
    (0..nnz)
        .map(|_| {
            let (i, j) = (lcg(seed) as usize % rows, lcg(seed) as usize % cols);
            (i, j, T::from_f64((lcg(seed) % 7) as f64 - 3.0))
        })
        .collect()
}

/// Compressed lines of entries, in the order that they are given within a line.
fn compress(
    lines: usize,
    of: impl Iterator<Item = (usize, usize)> + Clone,
) -> (Vec<i64>, Vec<u32>, Vec<usize>) {
    let (mut offsets, mut indices, mut order) = (vec![0], vec![], vec![]);
    for line in 0..lines {
        for (e, (_, j)) in of.clone().enumerate().filter(|(_, (i, _))| *i == line) {
            indices.push(j as u32);
            order.push(e);
        }
        offsets.push(indices.len() as i64);
    }
    (offsets, indices, order)
}

fn all_forms<T: Float>(rows: usize, cols: usize, nnz: usize, seed: &mut u64) {
    let entries = random::<T>(seed, rows.max(1), cols.max(1), nnz);
    let i: Vec<i64> = entries.iter().map(|e| e.0 as i64).collect();
    let j: Vec<u32> = entries.iter().map(|e| e.1 as u32).collect();
    let v: Vec<T> = entries.iter().map(|e| e.2).collect();
    let built = from_coo(rows, cols, &i, &j, &v, true).unwrap();
    check(rows, &entries, &built);
    let without = from_coo(rows, cols, &i, &j, v, false).unwrap();
    assert_eq!((&without.csr, without.entry_map), (&built.csr, None));

    let (offsets, indices, order) = compress(rows, entries.iter().map(|e| (e.0, e.1)));
    let sorted: Vec<_> = order.iter().map(|&e| entries[e]).collect();
    let v: Vec<T> = sorted.iter().map(|e| e.2).collect();
    check(rows, &sorted, &from_csr(rows, cols, &offsets, &indices, &v, true).unwrap());
    let signed = indices.iter().map(|&c| c as i32).collect();
    let owned = from_csr_owned(rows, cols, Offsets::I64(offsets), signed, v, true).unwrap();
    check(rows, &sorted, &owned);

    let (offsets, indices, order) = compress(cols, entries.iter().map(|e| (e.1, e.0)));
    let sorted: Vec<_> = order.iter().map(|&e| entries[e]).collect();
    let v: Vec<T> = sorted.iter().map(|e| e.2).collect();
    check(rows, &sorted, &from_csc(rows, cols, &offsets, &indices, &v, true).unwrap());

    // The canonical result is taken as it is, and turned twice it is itself.
    let csr = built.csr;
    let turned = transpose_csr(cols, &csr, true);
    assert_eq!(transpose_csr(rows, &turned.csr, false).csr, csr);
    let map = turned.entry_map.unwrap();
    for (e, v) in csr.values.iter().enumerate() {
        assert_eq!(turned.csr.values[map.get(e)], *v);
    }
    let pointers = (csr.col_indices.as_ptr(), csr.values.as_ptr());
    let CsrArrays { row_offsets, col_indices, values } = csr.clone();
    let again = from_csr_owned(rows, cols, row_offsets, col_indices, values, true).unwrap();
    assert_eq!((&again.csr, again.entry_map), (&csr, Some(EntryMap::Identity)));
    let CsrArrays { row_offsets, col_indices, values } = csr;
    let moved = from_csr_owned(rows, cols, row_offsets, col_indices, values, false).unwrap().csr;
    assert_eq!((moved.col_indices.as_ptr(), moved.values.as_ptr()), pointers);
}

#[test]
fn agrees_with_a_map() {
    let mut seed = 5;
    let shapes = [
        (0, 4, 0),
        (4, 0, 0),
        (0, 0, 0),
        (3, 3, 0),
        (1, 1, 9),
        (7, 5, 20),
        (40, 3, 500),
        (3, 900, 4000),
    ];
    for (rows, cols, nnz) in shapes {
        all_forms::<f32>(rows, cols, nnz, &mut seed);
        all_forms::<f64>(rows, cols, nnz, &mut seed);
        all_forms::<f16>(rows, cols, nnz, &mut seed);
    }
    // Enough for several tasks.
    let entries = random::<f32>(&mut seed, 900, 500, 100_000);
    let i: Vec<usize> = entries.iter().map(|e| e.0).collect();
    let j: Vec<i32> = entries.iter().map(|e| e.1 as i32).collect();
    let v: Vec<f32> = entries.iter().map(|e| e.2).collect();
    check(900, &entries, &from_coo(900, 500, &i, &j, v, true).unwrap());
}

/// Entries are placed by several threads where nobody asks for a map: rows of all lengths, more threads
/// than rows, and the transpose, whose entries come column by column.
#[test]
fn threads_share_the_rows() {
    let mut seed = 8;
    for (rows, cols, heavy) in [(900, 500, 0), (900, 500, 899), (5, 700, 2), (1, 50_000, 0)] {
        let mut entries = random::<f32>(&mut seed, rows, cols, 50_000);
        for entry in entries.iter_mut().step_by(2) {
            entry.0 = heavy;
        }
        let i: Vec<usize> = entries.iter().map(|e| e.0).collect();
        let j: Vec<i32> = entries.iter().map(|e| e.1 as i32).collect();
        let v: Vec<f32> = entries.iter().map(|e| e.2).collect();
        for threads in [1, 2, 3, 8] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let built = pool.install(|| from_coo(rows, cols, &i, &j, &v, false).unwrap());
            check(rows, &entries, &built);
            let turned = pool.install(|| transpose_csr(cols, &built.csr, false));
            let back: Vec<_> = entries.iter().map(|&(i, j, v)| (j, i, v)).collect();
            check(cols, &back, &turned);
        }
    }
}

#[test]
fn explicit_zeros_stay_and_dense_round_trips() {
    let built = from_coo(2, 2, &[1i32, 0], &[0i32, 1], vec![0.0f32, 2.0], false).unwrap().csr;
    assert_eq!(built.values, [2.0, 0.0]);
    let dense = [0.0f32, 1.0, 0.0, 0.0, 0.0, -2.0];
    let csr = from_dense(2, 3, &dense).unwrap();
    assert_eq!(csr.col_indices, [1, 2]);
    assert_eq!(to_dense(3, &csr).unwrap(), dense);
    assert_eq!(from_dense(0, 3, &[] as &[f32]).unwrap().row_offsets, Offsets::I32(vec![0]));
}

#[test]
fn halves_add_up_in_f32() {
    let v = vec![f16::from_f32(2048.0), f16::ONE, f16::ONE];
    let built = from_coo(1, 1, &[0i32; 3], &[0i32; 3], v, false).unwrap().csr;
    assert_eq!(built.values, [f16::from_f32(2050.0)]);
}

/// CUDALibrarySamples#106: only what the offsets say is read.
#[test]
fn longer_index_arrays() {
    let csr = from_csr(2, 3, &[0i32, 1, 2], &[2i32, 0, -9, 77], &[1.0f32, 2.0, 3.0], true).unwrap();
    assert_eq!(csr.csr.col_indices, [2, 0]);
    let owned =
        from_csr_owned(2, 3, Offsets::I64(vec![0, 1, 2]), vec![2, 0, -9], vec![1.0f32, 2.0], false);
    assert_eq!(owned.unwrap().csr, csr.csr);
}

#[test]
fn each_error_names_its_place() {
    use BuildError::*;
    let coo = |rows, cols, i: &[i64], j: &[i64], n| {
        from_coo(rows, cols, i, j, vec![1.0f32; n], false).unwrap_err()
    };
    assert_eq!(coo(2, 2, &[0, 2], &[0, 0], 2), RowOutOfRange { entry: 1, row: 2, rows: 2 });
    assert_eq!(coo(2, 2, &[0, 1], &[0, 5], 2), ColumnOutOfRange { entry: 1, col: 5, cols: 2 });
    assert_eq!(coo(0, 2, &[0], &[0], 1), RowOutOfRange { entry: 0, row: 0, rows: 0 });
    let negative = |what, position, value| Negative { what, position, value };
    assert_eq!(coo(2, 2, &[-3], &[0], 1), negative("row_indices", 0, -3));
    assert_eq!(coo(2, 2, &[0], &[i64::MIN], 1), negative("col_indices", 0, i64::MIN.into()));
    assert_eq!(
        coo(2, 2, &[0], &[0, 0], 2),
        LengthMismatch { what: "row_indices", expected: 2, got: 1 }
    );
    let limit = i32::MAX as usize;
    assert_eq!(coo(limit + 1, 2, &[], &[], 0), TooLarge { what: "rows", size: limit + 1, limit });
    let wide = from_coo(1, usize::MAX, &[0usize], &[1usize << 40], [1.0f32].as_slice(), false);
    assert_eq!(wide.unwrap_err(), TooLarge { what: "columns", size: usize::MAX, limit });

    let csr = |offsets: &[i64], j: &[i32], n| {
        from_csr(2, 3, offsets, j, vec![1.0f32; n], false).unwrap_err()
    };
    assert_eq!(csr(&[0, 1], &[0], 1), OffsetsLength { expected: 3, got: 2 });
    assert_eq!(csr(&[1, 1, 1], &[0], 1), FirstOffsetNotZero { got: 1 });
    assert_eq!(csr(&[0, 2, 1], &[0, 1], 2), OffsetsDecrease { line: 1, from: 2, to: 1 });
    assert_eq!(csr(&[0, -1, 1], &[0], 1), negative("offsets", 1, -1));
    let beyond = |what, len| LastOffset { last: 3, what, len };
    assert_eq!(csr(&[0, 1, 3], &[0, 1], 3), beyond("the index array", 2));
    assert_eq!(csr(&[0, 1, 3], &[0, 1, 2], 2), beyond("the values array", 2));
    assert_eq!(csr(&[0, 1, 2], &[0, 3], 2), ColumnOutOfRange { entry: 1, col: 3, cols: 3 });
    assert_eq!(csr(&[0, 1, 2], &[0, -1], 2), negative("col_indices", 1, -1));
    let csc = from_csc(2, 1, &[0i32, 1], &[2u32], vec![1.0f32], false).unwrap_err();
    assert_eq!(csc, RowOutOfRange { entry: 0, row: 2, rows: 2 });
    assert_eq!(
        check_canonical(2, 3, &[0i32, 2, 3], &[1, 1, 0], 3).unwrap_err(),
        NotCanonical { entry: 1, col: 1 }
    );
    assert_eq!(check_canonical(2, 3, &[0i32, 2, 3], &[1, 2, 0], 3), Ok(()));
    let text = RowOutOfRange { entry: 4, row: 9, rows: 2 }.to_string();
    assert_eq!(text, "entry 4: row 9 is outside a matrix of 2 rows");
    let dense = from_dense(2, 2, &[0.0f32; 3]).unwrap_err();
    assert_eq!(dense, LengthMismatch { what: "dense", expected: 4, got: 3 });
}
