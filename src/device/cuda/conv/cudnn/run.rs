//! A convolution by cuDNN on its way: chunks of samples, blocks of taps, and the copies around the
//! library's calls.

use super::Method;
use crate::device::cuda::Cuda;
use crate::device::cuda::conv::{Addresses, Question, chunks, layout};
use crate::device::spec::ConvPass;
use crate::error::Result;
use crate::plan::Candidate;

/// Runs one of the candidates.
pub(in crate::device::cuda::conv) fn run(
    cuda: &Cuda,
    question: &Question<'_>,
    candidate: &Candidate,
    at: Addresses,
    workspace: u64,
) -> Result<()> {
    let method = Method::unpack(candidate.params);
    let staging = method.staging(question).unwrap_or_default();
    let place = |start: Option<u64>| start.map(|start| workspace + start);
    let job = Job {
        cuda,
        question,
        method,
        at,
        x: place(staging.x),
        y: place(staging.y),
        w: place(staging.w),
        own: (workspace + staging.bytes, candidate.workspace - staging.bytes),
    };
    match question.pass {
        ConvPass::Forward => job.forward(),
        ConvPass::InputGradient => job.input_gradient(),
        ConvPass::WeightGradient => job.weight_gradient(),
    }
}

/// A candidate on its way: where its operands and the parts of its workspace are.
struct Job<'a> {
    cuda: &'a Cuda,
    question: &'a Question<'a>,
    method: Method,
    at: Addresses,
    x: Option<u64>,
    y: Option<u64>,
    w: Option<u64>,
    /// The library's own workspace.
    own: (u64, u64),
}

impl Job<'_> {
    fn forward(&self) -> Result<()> {
        let (g, at) = (self.question.geometry, &self.at);
        let whole = !self.method.in_blocks(self.question);
        let w = if whole { self.weights()? } else { 0 };
        for (start, samples) in chunks(g.batch, self.method.chunk) {
            let x = self.stage_x(start, samples)?;
            let y = self.y.unwrap_or(self.question.y_at(at.y, start));
            for (tap, taps) in chunks(g.kernel, self.method.taps) {
                let w = if whole { w } else { self.block_of_weights(tap, taps)? };
                let beta = if tap == 0 { 0.0 } else { 1.0 };
                self.call(samples, taps, [self.at_tap(x, tap), w], y, beta)?;
            }
            if self.y.is_some() {
                let to = self.question.y_at(at.y, start);
                let dtype = self.question.dtype;
                layout::from_last(
                    self.cuda,
                    dtype,
                    samples,
                    g.out_channels,
                    g.out_length,
                    y,
                    to,
                    at.bias,
                )?;
            }
        }
        if at.bias != 0 && self.y.is_none() {
            let (dtype, length) = (self.question.dtype, g.out_length);
            layout::add_bias(self.cuda, dtype, g.batch, g.out_channels, length, at.bias, at.y)?;
        }
        Ok(())
    }

    fn input_gradient(&self) -> Result<()> {
        let (g, at) = (self.question.geometry, &self.at);
        let whole = !self.method.in_blocks(self.question);
        let w = if whole { self.weights()? } else { 0 };
        for (start, samples) in chunks(g.batch, self.method.chunk) {
            let y = self.stage_y(start, samples)?;
            let to = self.question.x_at(at.x, start);
            let x = self.x.unwrap_or(to);
            if !whole {
                // Each block of taps reaches a part of the padded gradient and is added to it.
                let bytes = samples * g.in_channels * self.length() * self.question.dtype.size();
                self.cuda.stream.fill_bytes(x, 0, bytes)?;
            }
            for (tap, taps) in chunks(g.kernel, self.method.taps) {
                let w = if whole { w } else { self.block_of_weights(tap, taps)? };
                let beta = if whole { 0.0 } else { 1.0 };
                self.call(samples, taps, [y, w], self.at_tap(x, tap), beta)?;
            }
            self.unstage_x(samples, x, to)?;
        }
        Ok(())
    }

    fn weight_gradient(&self) -> Result<()> {
        let g = self.question.geometry;
        let w = self.w.unwrap_or(self.at.w);
        for (start, samples) in chunks(g.batch, self.method.chunk) {
            let (x, y) = (self.stage_x(start, samples)?, self.stage_y(start, samples)?);
            let beta = if start == 0 { 0.0 } else { 1.0 };
            self.call(samples, g.kernel, [x, y], w, beta)?;
        }
        if self.w.is_some() {
            let (dtype, per_group) = (self.question.dtype, g.in_channels / g.groups);
            let (rows, kernel) = (g.out_channels, g.kernel);
            layout::from_last(self.cuda, dtype, rows, per_group, kernel, w, self.at.w, 0)?;
        }
        Ok(())
    }

    fn call(
        &self,
        samples: usize,
        taps: usize,
        operands: [u64; 2],
        out: u64,
        beta: f64,
    ) -> Result<()> {
        let problem = self.method.problem(self.question, samples, taps);
        self.cuda.convolution(&problem, self.method.algorithm, operands, out, beta, self.own)
    }

    /// Length of `x` in the workspace.
    fn length(&self) -> usize {
        self.method.staged_length(self.question)
    }

    /// Where the padded input of a block of taps begins.
    fn at_tap(&self, x: u64, tap: usize) -> u64 {
        x + (tap * self.question.geometry.dilation * self.question.dtype.size()) as u64
    }

    /// Zeros before and after `x` in the workspace.
    fn padding(&self) -> (usize, usize) {
        let g = self.question.geometry;
        if self.method.pads(self.question) { (g.pad_left, g.pad_right) } else { (0, 0) }
    }

    /// The weights as the library takes them.
    fn weights(&self) -> Result<u64> {
        let (g, dtype) = (self.question.geometry, self.question.dtype);
        let Some(w) = self.w else { return Ok(self.at.w) };
        let per_group = g.in_channels / g.groups;
        layout::to_last(
            self.cuda,
            dtype,
            g.out_channels,
            per_group,
            g.kernel,
            (0, 0),
            self.at.w,
            w,
        )?;
        Ok(w)
    }

    /// Taps `tap .. tap + taps` of the weights, contiguous.
    fn block_of_weights(&self, tap: usize, taps: usize) -> Result<u64> {
        let (g, dtype) = (self.question.geometry, self.question.dtype);
        let Some(w) = self.w else { return Ok(self.at.w) };
        let rows = g.out_channels * (g.in_channels / g.groups);
        layout::crop(self.cuda, dtype, rows, g.kernel, tap, taps, self.at.w, w)?;
        Ok(w)
    }

    fn stage_x(&self, start: usize, samples: usize) -> Result<u64> {
        let (g, dtype) = (self.question.geometry, self.question.dtype);
        let from = self.question.x_at(self.at.x, start);
        let Some(x) = self.x else { return Ok(from) };
        let padding = self.padding();
        if self.method.channels_last {
            let (channels, length) = (g.in_channels, g.in_length);
            layout::to_last(self.cuda, dtype, samples, channels, length, padding, from, x)?;
        } else {
            layout::pad(self.cuda, dtype, samples * g.in_channels, g.in_length, padding, from, x)?;
        }
        Ok(x)
    }

    fn unstage_x(&self, samples: usize, x: u64, to: u64) -> Result<()> {
        let (g, dtype) = (self.question.geometry, self.question.dtype);
        let (left, right) = self.padding();
        match (self.x.is_some(), self.method.channels_last) {
            (false, _) => Ok(()),
            (true, true) => layout::from_last_cropped(
                self.cuda,
                dtype,
                samples,
                g.in_channels,
                g.in_length,
                (left, right),
                x,
                to,
            ),
            (true, false) => {
                let (rows, padded) = (samples * g.in_channels, g.in_length + left + right);
                layout::crop(self.cuda, dtype, rows, padded, left, g.in_length, x, to)
            }
        }
    }

    fn stage_y(&self, start: usize, samples: usize) -> Result<u64> {
        let (g, dtype) = (self.question.geometry, self.question.dtype);
        let from = self.question.y_at(self.at.y, start);
        let Some(y) = self.y else { return Ok(from) };
        let (channels, length) = (g.out_channels, g.out_length);
        layout::to_last(self.cuda, dtype, samples, channels, length, (0, 0), from, y)?;
        Ok(y)
    }
}
