//! A matrix without its entries, for dry runs: its sizes, what the planner knows of its rows, and, of one
//! that was there, how much padding its tiled form has.

use super::stored::Stored;
use super::tiled::{ALIGN, strip_on, strips};
use crate::device::Device;
use crate::device::spec::{Form, StoredSpec};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{Purpose, PurposeGuard};
use crate::tensor::Tensor;

impl Stored {
    /// Sizes alone, in compressed rows that are taken to be alike.
    pub(super) fn outline(
        rows: usize,
        cols: usize,
        nnz: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Stored> {
        let spec = StoredSpec {
            form: Form::Csr,
            longest: nnz.div_ceil(rows.max(1)),
            filled: rows.min(nnz),
            fresh_groups: u16::MAX,
            fresh_columns: u16::MAX,
        };
        Stored::without_entries([rows, cols, nnz], spec, dtype, None, device)
    }

    /// The sizes of a matrix that is there, with what is known of its rows, for a dry device.
    pub(super) fn outline_of(&self, device: &Device) -> Result<Stored> {
        let mean = self.nnz / self.spec.filled.max(1);
        let strip = strip_on(device, self.dtype(), self.cols, mean);
        let padded = match strip {
            Some(strip) => Some((strip, self.padded_entries(strip)?)),
            None => None,
        };
        let spec = StoredSpec { form: Form::Csr, ..self.spec };
        let sizes = [self.rows, self.cols, self.nnz];
        Stored::without_entries(sizes, spec, self.dtype(), padded, &device.host())
    }

    fn without_entries(
        [rows, cols, nnz]: [usize; 3],
        spec: StoredSpec,
        dtype: DType,
        padded: Option<(usize, usize)>,
        device: &Device,
    ) -> Result<Stored> {
        let _purpose = PurposeGuard::new(Purpose::Sparse);
        let offset = if nnz > i32::MAX as usize { DType::I64 } else { DType::I32 };
        let array = |elements: usize, dtype| Tensor::empty("outline", [elements], dtype, device);
        let row_offsets = array(rows + 1, offset)?;
        let (columns, values) = (array(nnz, DType::I32)?, array(nnz, dtype)?);
        Ok(Stored { rows, cols, nnz, spec, padded, row_offsets, pieces: None, columns, values })
    }

    /// [`Stored::on`] for a matrix without entries. Where the sizes depend on them, the largest that they
    /// can be.
    pub(super) fn outlined(&self, device: &Device, form: Form) -> Result<Stored> {
        if !device.is_dry() {
            let reason = "the matrix has no entries, only sizes; move it to a dry device";
            return Err(Error::argument("to_with", "device", device, reason));
        }
        let _purpose = PurposeGuard::new(Purpose::Sparse);
        let array = |elements: usize, dtype| match form {
            Form::Streamed => Tensor::in_host_memory("to", [elements], dtype, device),
            _ => Tensor::empty("to", [elements], dtype, device),
        };
        let (entries, marks) = match form {
            Form::Tiled { strip } => {
                let pieces = strips(self.cols, strip) * self.rows;
                let entries = match self.padded {
                    Some((known, entries)) if known == strip => entries,
                    _ => {
                        let why = "a tiled matrix without its entries is taken to be padded most";
                        device.note_bound(why);
                        let padding = pieces.min(self.nnz) * (ALIGN - 1);
                        (self.nnz + padding).next_multiple_of(ALIGN)
                    }
                };
                (entries, Some(pieces + 1))
            }
            _ => (self.nnz, None),
        };
        // In the order in which a matrix with entries takes them.
        let columns = array(if marks.is_some() { entries / 2 } else { entries }, DType::I32)?;
        let values = array(entries, self.dtype())?;
        let row_offsets = array(self.rows + 1, self.offset_dtype())?;
        let pieces = marks.map(|marks| array(marks, DType::I32)).transpose()?;
        let spec = StoredSpec { form, ..self.spec };
        Ok(Stored { spec, row_offsets, pieces, columns, values, ..self.clone() })
    }
}
