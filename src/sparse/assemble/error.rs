//! What can be wrong with the arrays that a sparse matrix is built from, each with its exact place.

/// Why arrays are not a sparse matrix. Numbers that came from the caller are `i128`, so that every
/// index type, signed or not, is shown as it was given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A side has more than `i32::MAX` rows or columns.
    #[error("{what} = {size} is more than the {limit} that 32-bit indices allow")]
    TooLarge {
        /// `rows` or `columns`.
        what: &'static str,
        /// The size that was asked for.
        size: usize,
        /// The largest size there is.
        limit: usize,
    },
    /// Memory that the system does not have.
    #[error("the system refused {bytes} bytes for the matrix")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// A row index that is not below the row count.
    #[error("entry {entry}: row {row} is outside a matrix of {rows} rows")]
    RowOutOfRange {
        /// Position in the arrays as given.
        entry: usize,
        /// The index found there.
        row: i128,
        /// The row count.
        rows: usize,
    },
    /// A column index that is not below the column count.
    #[error("entry {entry}: column {col} is outside a matrix of {cols} columns")]
    ColumnOutOfRange {
        /// Position in the arrays as given.
        entry: usize,
        /// The index found there.
        col: i128,
        /// The column count.
        cols: usize,
    },
    /// A negative index or offset.
    #[error("{what}[{position}] = {value} is negative")]
    Negative {
        /// Which array.
        what: &'static str,
        /// Position in it.
        position: usize,
        /// The number found there.
        value: i128,
    },
    /// Offsets that go down: those of row (or, for CSC, column) `line`.
    #[error("the offsets of line {line} decrease from {from} to {to}")]
    OffsetsDecrease {
        /// The row of a CSR matrix, the column of a CSC one.
        line: usize,
        /// Where the line starts.
        from: i128,
        /// Where it is said to end.
        to: i128,
    },
    /// An offsets array that is not one longer than the number of rows (columns for CSC).
    #[error("there must be {expected} offsets, and there are {got}")]
    OffsetsLength {
        /// Rows (columns) + 1.
        expected: usize,
        /// What was given.
        got: usize,
    },
    /// Offsets that do not begin with zero.
    #[error("the first offset is {got}, not 0")]
    FirstOffsetNotZero {
        /// The number found there.
        got: i128,
    },
    /// Offsets that end beyond the index array or the values.
    #[error("the last offset is {last}, but {what} has only {len} entries")]
    LastOffset {
        /// The last offset.
        last: i128,
        /// The array that is too short.
        what: &'static str,
        /// Its length.
        len: usize,
    },
    /// Arrays that must have one length and have several.
    #[error("{what} has {got} entries where {expected} are needed")]
    LengthMismatch {
        /// The array that differs.
        what: &'static str,
        /// The length that the others ask for.
        expected: usize,
        /// Its length.
        got: usize,
    },
    #[cfg(test)]
    /// A row whose columns do not strictly increase, where canonical CSR was promised.
    #[error("entry {entry}: column {col} does not follow the one before it in its row")]
    NotCanonical {
        /// Position in the arrays.
        entry: usize,
        /// The index found there.
        col: i128,
    },
}
