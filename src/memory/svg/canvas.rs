//! What the picture is drawn on: rectangles, areas, lines and text by plotters' SVG backend, and how
//! much room a text takes.

use crate::error::{Error, Result};
use plotters::prelude::{
    Color, DrawingBackend, FontStyle, FontTransform, IntoTextStyle, RGBColor, SVGBackend,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(super) const PAPER: RGBColor = RGBColor(255, 255, 255);
pub(super) const INK: RGBColor = RGBColor(26, 26, 26);
pub(super) const FAINT: RGBColor = RGBColor(217, 217, 217);

/// A rectangle in pixels: left, top, right, bottom.
pub(super) type Frame = [f64; 4];

/// Where a text is in relation to its point, which is always at half its height.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Side {
    Start,
    Middle,
    End,
}

pub(super) struct Canvas<'a> {
    svg: SVGBackend<'a>,
}

impl<'a> Canvas<'a> {
    /// A page with an opaque background: dark text on it is readable whatever page it is put on.
    pub(super) fn new(out: &'a mut String, width: u32, height: u32) -> Result<Self> {
        let mut canvas = Canvas { svg: SVGBackend::with_string(out, (width, height)) };
        canvas.rectangle([0.0, 0.0, width.into(), height.into()], &PAPER)?;
        Ok(canvas)
    }

    /// Ends the picture.
    pub(super) fn finish(mut self) -> Result<()> {
        self.svg.present().map_err(failed)
    }

    pub(super) fn rectangle(&mut self, frame: Frame, colour: &impl Color) -> Result<()> {
        let [left, top, right, bottom] = frame;
        let (from, to) = (pixel(left, top), pixel(right, bottom));
        self.svg.draw_rect(from, to, &colour.to_backend_color(), true).map_err(failed)
    }

    pub(super) fn area(&mut self, points: Vec<(i32, i32)>, colour: RGBColor) -> Result<()> {
        self.svg.fill_polygon(points, &colour.to_backend_color()).map_err(failed)
    }

    pub(super) fn outline(&mut self, points: Vec<(i32, i32)>) -> Result<()> {
        self.svg.draw_path(points, &INK.to_backend_color()).map_err(failed)
    }

    /// A horizontal dashed line, with paper in its gaps so that it is seen on dark areas, too. The
    /// dashes are rectangles, at most 100 so that a wide picture stays small.
    pub(super) fn dashes(&mut self, left: f64, right: f64, y: f64) -> Result<()> {
        self.rectangle([left, y - 1.0, right, y + 1.0], &PAPER)?;
        let period = ((right - left) / 100.0).max(9.0);
        let mut x = left;
        while x < right {
            let end = (x + 0.6 * period).min(right);
            self.rectangle([x, y - 1.0, end, y + 1.0], &INK)?;
            x += period;
        }
        Ok(())
    }

    pub(super) fn text(&mut self, text: &str, x: f64, y: f64, style: &Lettering) -> Result<()> {
        let side = match style.side {
            Side::Start => HPos::Left,
            Side::Middle => HPos::Center,
            Side::End => HPos::Right,
        };
        let weight = if style.bold { FontStyle::Bold } else { FontStyle::Normal };
        // The backend divides by 1.24: sizes are of the box around a line of text.
        let text_style = ("sans-serif", style.size * 1.24, weight)
            .into_text_style(&self.svg.get_size())
            .color(&style.colour)
            .transform(FontTransform::None)
            .pos(Pos::new(side, VPos::Center));
        self.svg.draw_text(&printable(text), &text_style, pixel(x, y)).map_err(failed)
    }

    /// A text on a patch of paper, for where lines and areas would cross it.
    pub(super) fn patch(&mut self, text: &str, frame: Frame, style: &Lettering) -> Result<()> {
        let [left, top, right, bottom] = frame;
        self.rectangle(frame, &PAPER.mix(0.85))?;
        let style = Lettering { side: Side::Middle, ..*style };
        self.text(text, (left + right) / 2.0, (top + bottom) / 2.0, &style)
    }
}

/// How a text is written.
#[derive(Clone, Copy)]
pub(super) struct Lettering {
    /// Height of a line, in pixels.
    pub(super) size: f64,
    pub(super) bold: bool,
    pub(super) side: Side,
    pub(super) colour: RGBColor,
}

impl Lettering {
    pub(super) fn new(size: f64, side: Side) -> Self {
        Lettering { size, bold: false, side, colour: INK }
    }

    /// Pixels that a text takes, rather too many than too few: which font it will be is not known.
    pub(super) fn width(&self, text: &str) -> f64 {
        let ems = text.chars().map(|c| match c {
            // Han, kana, hangul and most symbols are as wide as high.
            '\u{1100}'.. => 1.0,
            'm' | 'w' | 'M' | 'W' | '@' | '%' => 0.98,
            'f' | 'i' | 'j' | 'l' | 'r' | 't' | 'I' | ' ' | '.' | ',' | ':' | '/' => 0.4,
            c if c.is_uppercase() => 0.76,
            _ => 0.63,
        });
        let bold = if self.bold { 1.1 } else { 1.0 };
        bold * self.size * ems.sum::<f64>()
    }

    /// `text` if it fits, else as much of its beginning as does, with an ellipsis; nothing where fewer
    /// than three letters would stay.
    pub(super) fn fit(&self, text: &str, width: f64) -> Option<String> {
        if self.width(text) <= width {
            return Some(text.to_owned());
        }
        let mut short = String::new();
        for c in text.chars() {
            short.push(c);
            if self.width(&short) + self.width("…") > width {
                short.pop();
                break;
            }
        }
        let short = short.trim_end();
        (short.chars().count() >= 3).then(|| format!("{short}…"))
    }
}

/// The picture with edges that fall on whole pixels, which plotters has no call for: all of them are
/// horizontal or vertical.
pub(super) fn crisp(svg: &str) -> String {
    svg.replacen("<svg ", "<svg shape-rendering=\"crispEdges\" ", 1)
}

/// XML has no way to write control characters, and line breaks would end up as blanks. (Markup is
/// escaped by the backend.)
fn printable(text: &str) -> String {
    let seen = |c: char| match c {
        '\t' | '\n' | '\r' => ' ',
        '\u{FFFE}' | '\u{FFFF}' => '\u{FFFD}',
        c if c.is_control() => '\u{FFFD}',
        c => c,
    };
    text.chars().map(seen).collect()
}

fn pixel(x: f64, y: f64) -> (i32, i32) {
    (x.round() as i32, y.round() as i32)
}

fn failed(error: impl std::error::Error) -> Error {
    Error::custom("Timeline::to_svg", error.to_string())
}
