//! A timeline as a picture: what was live, by purpose, over the events of a recording.

mod canvas;
mod columns;
mod labels;
mod phases;
mod scale;

use super::bytes::format_bytes;
use super::purpose::Purpose;
use super::timeline::{Phase, Timeline};
use crate::error::{Error, Result};
use canvas::{Canvas, FAINT, Frame, INK, Lettering, Side, crisp};
use columns::{Columns, total};
use phases::rows;
use plotters::prelude::RGBColor;
use scale::{Scale, readable, round_numbers, thousands};

/// Sizes that are drawn, in pixels: below, the labels do not fit.
const WIDTHS: std::ops::RangeInclusive<u32> = 400..=10_000;
const HEIGHTS: std::ops::RangeInclusive<u32> = 200..=10_000;

/// Rows of scopes at most.
const SCOPE_ROWS: usize = 3;

impl Timeline {
    /// The timeline as an SVG picture of `width` × `height` pixels, with the feature `plotters`.
    ///
    /// Live bytes are stacked by purpose over the events in their order, which is not to scale with
    /// time. Above them are the passes and the caller's scopes. The peak is marked with its bytes;
    /// the limit and the workspace cap are dashed lines where the axis reaches them (it goes up to the
    /// peak, or to a limit of at most twice that), and are in the heading in any case. Purposes can be
    /// told apart without colour, and the background is white, for light and dark pages alike.
    ///
    /// A picture has at most 800 columns and stays below 300 KB: of more events, each column shows
    /// the one with the most live bytes, so that no peak is lost.
    ///
    /// ```
    /// use capgrad::{DType, Device, Tensor};
    /// # fn main() -> capgrad::Result<()> {
    /// let device = Device::new_cpu(Default::default())?;
    /// device.set_recording(true);
    /// let x = Tensor::ones([1024], DType::F32, &device)?;
    /// let timeline = device.report().recorded.unwrap().timeline;
    /// let svg = timeline.to_svg(900, 450)?; // std::fs::write("step.svg", svg)
    /// assert!(svg.contains("peak 4096 B"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a picture below 400 × 200 or above 10,000 × 10,000 pixels.
    pub fn to_svg(&self, width: u32, height: u32) -> Result<String> {
        let checked = |argument, value: u32, range: std::ops::RangeInclusive<u32>| {
            let reason = format!("must be from {} to {} pixels", range.start(), range.end());
            let error = || Error::argument("Timeline::to_svg", argument, value, reason);
            if range.contains(&value) { Ok(()) } else { Err(error()) }
        };
        checked("width", width, WIDTHS)?;
        checked("height", height, HEIGHTS)?;
        let mut svg = String::new();
        let mut canvas = Canvas::new(&mut svg, width, height)?;
        Picture::new(self, width.into(), height.into()).draw(&mut canvas)?;
        canvas.finish()?;
        Ok(crisp(&svg))
    }
}

/// What is drawn, and where.
struct Picture<'a> {
    timeline: &'a Timeline,
    columns: Columns,
    scale: Scale,
    /// Height of a line of text: what all distances are measured in.
    em: f64,
    width: f64,
    /// The rectangle between the axes.
    plot: Frame,
    /// The rows above it: what their phases are, and the phases.
    rows: Vec<(&'static str, Vec<&'a Phase>)>,
    rows_top: f64,
    /// Scopes that had no place.
    left_out: usize,
    /// Rectangles that labels have taken.
    taken: Vec<Frame>,
}

impl<'a> Picture<'a> {
    fn new(timeline: &'a Timeline, width: f64, height: f64) -> Self {
        let em = 10.0 + width.min(2.0 * height) / 350.0;
        let points = timeline.live.len().max(1);
        // Heading, rows of phases, plot, labels of events. The plot comes before many rows.
        let rows_top = 3.8 * em;
        let for_rows = height - rows_top - 3.4 * em - 7.0 * em;
        let most_rows = (for_rows / (1.5 * em)).max(1.0) as usize;
        let (passes, _) = rows(&timeline.passes, points, 1);
        let most_scopes = SCOPE_ROWS.min(most_rows.saturating_sub(passes.len()));
        let (scopes, left_out) = rows(&timeline.scopes, points, most_scopes);
        let passes = passes.into_iter().map(|row| ("passes", row));
        let rows: Vec<_> = passes.chain(scopes.into_iter().map(|row| ("scopes", row))).collect();

        let top = rows_top + 1.5 * em * rows.len() as f64 + 0.3 * em;
        let bottom = height - 3.1 * em;
        // Columns are as wide as pixels at least: how many there are depends on the margins, but
        // the peak does not.
        let whole = Columns::new(timeline, 1);
        let peak = total(&whole.at_peak);
        let limit = timeline.limit.map(u128::from).filter(|&limit| limit <= 2 * peak);
        let most = peak.max(limit.unwrap_or(0));
        let scale = Scale::new(most, top, bottom, 1.9 * em, (2.2 * em).max((bottom - top) / 12.0));

        let small = Lettering::new(em, Side::End);
        let labels = scale.ticks();
        let labels = labels.iter().map(|(_, label)| label.as_str()).chain(["passes"]);
        let left = labels.map(|label| small.width(label)).fold(0.0, f64::max) + 1.2 * em;
        let legend = if width < 48.0 * em { 9.0 * em } else { 16.5 * em };
        let plot = [left.round(), top.round(), (width - legend).round(), bottom.round()];
        let columns = Columns::new(timeline, (plot[2] - plot[0]) as usize);
        Picture {
            timeline,
            columns,
            scale,
            em,
            width,
            plot,
            rows,
            rows_top,
            left_out,
            taken: Vec::new(),
        }
    }

    fn draw(&mut self, canvas: &mut Canvas<'_>) -> Result<()> {
        self.heading(canvas)?;
        self.phases(canvas)?;
        self.axes(canvas)?;
        self.areas(canvas)?;
        self.frame(canvas)?;
        self.lines(canvas)?;
        self.names(canvas)?;
        self.legend(canvas)
    }

    /// Device and peak; below, limit and cap, and what is drawn.
    fn heading(&self, canvas: &mut Canvas<'_>) -> Result<()> {
        let Timeline { device, limit, workspace_cap, complete, .. } = self.timeline;
        let peak = readable(total(&self.columns.at_peak));
        let title = if device.is_empty() {
            format!("peak {peak}")
        } else {
            format!("{}: peak {peak}", device)
        };
        let outside =
            |bytes: u64| if self.scale.holds(bytes) { "" } else { " (above the picture)" };
        let stated = |name: &str, bytes: Option<u64>| match bytes {
            Some(bytes) => format!("{name} {}{}", format_bytes(bytes), outside(bytes)),
            None => format!("no {name}"),
        };
        let mut parts = vec![stated("limit", *limit), stated("workspace cap", *workspace_cap)];
        let columns = self.columns.live.len();
        parts.push(match self.columns.points - 1 {
            1 => "live bytes by purpose, over 1 event".to_owned(),
            events => format!("live bytes by purpose, over {} events", thousands(events)),
        });
        if !complete && self.columns.points > 1 {
            parts.push("cut short".to_owned());
        }
        if columns < self.columns.points {
            let each = thousands(self.columns.points.div_ceil(columns));
            parts.push(format!("each column shows the highest of up to {each}"));
        }
        if self.left_out > 0 {
            parts.push(format!("{} scopes are not shown", thousands(self.left_out)));
        }
        let room = self.width - 1.2 * self.em;
        let large = Lettering { bold: true, ..Lettering::new(1.3 * self.em, Side::Start) };
        let title = large.fit(&title, room).unwrap_or_default();
        canvas.text(&title, 0.6 * self.em, 1.2 * self.em, &large)?;
        let small = Lettering::new(self.em, Side::Start);
        // What does not fit is left out, the least important first.
        while parts.len() > 2 && small.width(&parts.join(" · ")) > room {
            parts.pop();
        }
        let line = small.fit(&parts.join(" · "), room).unwrap_or_default();
        canvas.text(&line, 0.6 * self.em, 2.75 * self.em, &small)
    }

    /// Ticks, their labels and the lines of the grid.
    fn axes(&self, canvas: &mut Canvas<'_>) -> Result<()> {
        let [left, _, right, bottom] = self.plot;
        let em = self.em;
        for (y, label) in self.scale.ticks() {
            canvas.rectangle([left, y, right, y + 1.0], &FAINT)?;
            canvas.rectangle([left - 0.3 * em, y, left, y + 1.0], &INK)?;
            canvas.text(&label, left - 0.6 * em, y, &Lettering::new(em, Side::End))?;
        }
        let points = self.columns.points;
        let below = Lettering::new(em, Side::Middle);
        let most = (right - left) / (below.width(&thousands(points)) + 2.0 * em);
        for event in round_numbers(points, most.min(12.0) as usize) {
            let x = left + event as f64 / points as f64 * (right - left);
            canvas.rectangle([x, bottom, x + 1.0, bottom + 0.3 * em], &INK)?;
            canvas.text(&thousands(event), x, bottom + 1.0 * em, &below)?;
        }
        let titles = ["events in their order, not to scale with time", "events in order, not time"];
        let title = titles.into_iter().find(|title| below.width(title) <= right - left);
        let middle = (left + right) / 2.0;
        canvas.text(title.unwrap_or_default(), middle, bottom + 2.3 * em, &below)
    }

    /// Pixels from the left at which a column begins.
    fn x(&self, column: usize) -> f64 {
        let [left, _, right, _] = self.plot;
        left + column as f64 / self.columns.live.len() as f64 * (right - left)
    }

    /// Each purpose's area reaches down to the axis and is covered by those below it in the stack.
    fn areas(&self, canvas: &mut Canvas<'_>) -> Result<()> {
        let [left, _, right, bottom] = self.plot.map(|edge| edge as i32);
        for &purpose in self.columns.purposes.iter().rev() {
            let mut points = vec![(left, bottom)];
            for (column, top) in self.columns.tops(purpose).enumerate() {
                let y = self.scale.y(top) as i32;
                // Memory changes at once: steps, not slopes.
                if let Some(&(_, before)) = points.last().filter(|&&(_, before)| before != y) {
                    let x = self.x(column).round() as i32;
                    points.extend([(x, before), (x, y)]);
                }
            }
            let end = points.last().map_or(bottom, |&(_, y)| y);
            points.extend([(right, end), (right, bottom)]);
            // Where steps are too close, there would be nothing but outlines; and a wide picture is to
            // stay small.
            let most = ((right - left) as usize).min(1600) / 2;
            let outline = (points.len() < most).then(|| points.clone());
            canvas.area(points, paint(purpose))?;
            if let Some(points) = outline {
                canvas.outline(points)?;
            }
        }
        Ok(())
    }

    fn frame(&self, canvas: &mut Canvas<'_>) -> Result<()> {
        let [left, top, right, bottom] = self.plot;
        canvas.rectangle([left, top, left + 1.0, bottom], &INK)?;
        canvas.rectangle([left, bottom, right + 1.0, bottom + 1.0], &INK)
    }

    /// The purposes in the order of the stack, with their bytes at the peak where there is room.
    fn legend(&self, canvas: &mut Canvas<'_>) -> Result<()> {
        let em = self.em;
        let [_, _, right, bottom] = self.plot;
        let left = right + 1.0 * em;
        let end = self.width - 0.6 * em;
        let lines = self.columns.purposes.len() as f64 + 1.0;
        let line = (1.6 * em).min((bottom - self.rows_top) / lines);
        let mut y = self.rows_top + 0.7 * em;
        let with_bytes = end - left > 12.0 * em;
        if with_bytes {
            canvas.text("at the peak", end, y, &Lettering::new(em, Side::End))?;
            y += line;
        }
        for &purpose in self.columns.purposes.iter().rev() {
            canvas.rectangle([left, y - 0.5 * em, left + em, y + 0.5 * em], &INK)?;
            let inner = [left + 1.0, y - 0.5 * em + 1.0, left + em - 1.0, y + 0.5 * em - 1.0];
            canvas.rectangle(inner, &paint(purpose))?;
            canvas.text(purpose.name(), left + 1.5 * em, y, &Lettering::new(em, Side::Start))?;
            if with_bytes {
                let bytes = format_bytes(self.columns.at_peak[purpose]);
                canvas.text(&bytes, end, y, &Lettering::new(em, Side::End))?;
            }
            y += line;
        }
        Ok(())
    }
}

/// A purpose's colour. Lightness (CIE L*, in the comments) tells all of them apart by at least 12, and
/// those that are usually neighbours by 25.
fn paint(purpose: Purpose) -> RGBColor {
    match purpose {
        Purpose::Parameter => RGBColor(0x00, 0x2f, 0x67), // 20
        Purpose::Workspace => RGBColor(0x99, 0x0c, 0x13), // 32
        Purpose::Optimiser => RGBColor(0x87, 0x56, 0xa6), // 45
        Purpose::Activation => RGBColor(0x00, 0x95, 0xd2), // 58
        Purpose::Sparse => RGBColor(0x35, 0xc4, 0x95),    // 71
        Purpose::Gradient => RGBColor(0xfd, 0xcb, 0x52),  // 84
        Purpose::Other => RGBColor(0xf9, 0xf6, 0xf1),     // 97
    }
}
