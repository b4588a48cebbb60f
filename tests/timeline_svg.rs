//! The picture of a timeline, read back as XML: what is written in it and where the areas are, held
//! against scenarios that are worked out by hand.

use capgrad::{
    Conv1d, DType, Device, Error, KIB, MIB, Purpose, Scope, Tape, Tensor, Timeline, optim::Adam,
};

/// An element of a picture.
struct Element {
    tag: String,
    attributes: Vec<(String, String)>,
    text: String,
}

impl Element {
    fn get(&self, name: &str) -> &str {
        &self.attributes.iter().find(|(key, _)| key == name).unwrap().1
    }

    fn number(&self, name: &str) -> f64 {
        self.get(name).parse().unwrap()
    }
}

/// Text with its references replaced. Anything that XML would not have is a failure.
fn unescaped(raw: &str) -> String {
    assert!(!raw.contains(|c: char| c.is_control() && c != '\n'), "control character in {raw:?}");
    let mut text = String::new();
    for (i, part) in raw.split('&').enumerate() {
        assert!(!part.contains(['<', '>']), "markup in {raw:?}");
        if i == 0 {
            text.push_str(part);
            continue;
        }
        let (name, rest) = part.split_once(';').expect("a reference");
        let names = [("lt", '<'), ("gt", '>'), ("amp", '&'), ("quot", '"'), ("apos", '\'')];
        text.push(names.iter().find(|(known, _)| *known == name).expect(name).1);
        text.push_str(rest);
    }
    text
}

/// All elements of a document that has nothing but elements, attributes and text.
fn elements(svg: &str) -> Vec<Element> {
    let mut elements: Vec<Element> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut rest = svg;
    while let Some(start) = rest.find('<') {
        let text = unescaped(&rest[..start]);
        match open.last() {
            Some(&inner) => elements[inner].text.push_str(text.trim()),
            None => assert!(text.trim().is_empty(), "text outside of the root: {text:?}"),
        }
        let end = start + rest[start..].find('>').unwrap();
        let inside = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(tag) = inside.strip_prefix('/') {
            assert_eq!(elements[open.pop().unwrap()].tag, tag);
            continue;
        }
        assert!(open.len() < 2 && (elements.is_empty() || !open.is_empty()), "one root");
        let (tag, mut list) = inside.trim_end_matches('/').split_once(' ').unwrap();
        let mut attributes = Vec::new();
        while let Some((name, value)) = list.split_once("=\"") {
            let (value, after) = value.split_once('"').unwrap();
            attributes.push((name.trim().to_owned(), unescaped(value)));
            list = after;
        }
        assert!(list.trim().is_empty(), "attributes of {inside:?}");
        if !inside.ends_with('/') {
            open.push(elements.len());
        }
        elements.push(Element { tag: tag.to_owned(), attributes, text: String::new() });
    }
    assert!(open.is_empty() && rest.trim().is_empty());
    elements
}

fn texts(svg: &str) -> Vec<String> {
    elements(svg).into_iter().filter(|e| e.tag == "text").map(|e| e.text).collect()
}

#[track_caller]
fn assert_says(svg: &str, text: &str) {
    let texts = texts(svg);
    assert!(texts.iter().any(|t| t == text), "no {text:?} in {texts:?}");
}

/// Bytes at the upper edge of the highest area, by the axis' own labels; and the bytes of a pixel.
fn highest(svg: &str, top_label: (&str, f64)) -> (f64, f64) {
    let elements = elements(svg);
    // The axis' labels end at its left; that of the events, also "0", is in the middle of its tick.
    let tick = |text: &str| {
        let is = |e: &&Element| e.tag == "text" && e.text == text && e.get("text-anchor") == "end";
        elements.iter().find(is).unwrap_or_else(|| panic!("no tick {text}")).number("y")
    };
    let (zero, top) = (tick("0"), tick(top_label.0));
    let areas = elements.iter().filter(|e| e.tag == "polygon" && e.get("fill") != "#1A1A1A");
    let ys = areas.flat_map(|area| {
        let points: Vec<&str> = area.get("points").split_whitespace().collect();
        points.into_iter().map(|p| p.split_once(',').unwrap().1.parse::<f64>().unwrap())
    });
    let pixel = top_label.1 / (zero - top);
    ((zero - ys.fold(f64::INFINITY, f64::min)) * pixel, pixel)
}

fn recording() -> Device {
    let device = Device::new_cpu(Default::default()).unwrap();
    device.set_recording(true);
    device
}

fn timeline(device: &Device) -> Timeline {
    device.report().recorded.unwrap().timeline
}

fn bytes(count: usize, device: &Device) -> Tensor {
    assert_eq!(count % 4, 0);
    Tensor::zeros([count / 4], DType::F32, device).unwrap()
}

#[test]
fn the_peak_the_limit_and_the_cap_are_labelled() {
    let device = recording();
    device.set_workspace_cap(64 * KIB);
    let _kept = bytes(MIB as usize, &device);
    drop(bytes(MIB as usize / 2, &device));
    let mut timeline = timeline(&device);
    timeline.limit = Some(2 * MIB);
    let svg = timeline.to_svg(900, 450).unwrap();
    assert_says(&svg, "peak 1.50 MiB");
    assert_says(&svg, &format!("{}: peak 1.50 MiB", device.name()));
    assert_says(&svg, "limit 2.00 MiB");
    assert_says(&svg, "workspace cap 64.00 KiB");
    let (peak, pixel) = highest(&svg, ("2 MiB", 2.0 * 1024.0 * 1024.0));
    assert!((peak - 1_572_864.0).abs() <= 1.5 * pixel, "{peak}");
    // Of a limit far above, there is no line, but it is in the heading.
    timeline.limit = Some(64 * MIB);
    let svg = timeline.to_svg(900, 450).unwrap();
    assert!(texts(&svg).iter().all(|text| text != "limit 64.00 MiB"));
    assert!(texts(&svg).iter().any(|text| text.starts_with("limit 64.00 MiB (above")));
}

#[test]
fn the_purposes_and_passes_that_occur_are_named() -> capgrad::Result<()> {
    let device = recording();
    let conv = Conv1d::builder(3, 4, 3).build(&device)?;
    let mut adam = Adam::new(conv.parameters(), Default::default())?;
    let tape = Tape::new();
    let x = tape.constant(Tensor::rand([2, 3, 16], DType::F32, &device)?);
    adam.step(&conv.forward(&x)?.mean()?.backward()?)?;
    let svg = timeline(&device).to_svg(1200, 500)?;
    for name in ["parameter", "activation", "gradient", "optimiser", "other", "forward", "backward"]
    {
        assert_says(&svg, name);
    }
    assert!(texts(&svg).iter().all(|text| text != "sparse"));
    Ok(())
}

#[test]
fn names_are_escaped() {
    let device = recording();
    let names = [r#"a<b & "c""#, "bell\u{7} and\nline", "数据"];
    for name in names {
        let scope: Scope = device.scope(name);
        drop(bytes(4096, &device));
        scope.end();
    }
    let mut timeline = timeline(&device);
    timeline.device = "a device of <Sons> & Co".into();
    let svg = timeline.to_svg(900, 450).unwrap();
    assert!(svg.contains("a&lt;b &amp; &quot;c&quot;"));
    for name in [names[0], "bell\u{FFFD} and line", names[2]] {
        assert_says(&svg, name);
    }
    assert_says(&svg, "a device of <Sons> & Co: peak 4096 B");
}

#[test]
fn a_million_events_stay_small_and_keep_the_peak() {
    let device = recording();
    for i in 0..500_000 {
        let scope = (i % 10 == 0).then(|| device.scope("a step"));
        // The peak lasts for one event.
        let size = if i == 123_456 { 4000 } else { 400 + 4 * (i * 7919 % 100) };
        drop(bytes(size, &device));
        drop(scope);
    }
    let timeline = timeline(&device);
    assert!(timeline.live.len() > 1_000_000);
    for size in [(400, 200), (900, 450), (4000, 2000), (10_000, 10_000)] {
        let svg = timeline.to_svg(size.0, size.1).unwrap();
        assert!(svg.len() < 300_000, "{} bytes at {size:?}", svg.len());
        assert_says(&svg, "peak 4000 B");
    }
    let svg = timeline.to_svg(900, 450).unwrap();
    let (peak, pixel) = highest(&svg, ("2 KiB", 2048.0));
    assert!((peak - 4000.0).abs() <= 1.5 * pixel, "{peak}");
}

#[test]
fn the_smallest_recordings_are_drawn() {
    let device = recording();
    assert_says(&timeline(&device).to_svg(400, 200).unwrap(), "peak 0 B");
    assert_says(&Timeline::default().to_svg(400, 200).unwrap(), "peak 0 B");
    let _one = bytes(4096, &device);
    let svg = timeline(&device).to_svg(900, 450).unwrap();
    assert_says(&svg, "peak 4096 B");
    assert_says(&svg, "other");
}

#[test]
fn sizes_out_of_range_are_refused() {
    let timeline = Timeline::default();
    for (width, height, wrong) in
        [(399, 200, "width"), (400, 199, "height"), (10_001, 450, "width"), (900, 10_001, "height")]
    {
        let error = timeline.to_svg(width, height).unwrap_err();
        assert!(matches!(error, Error::Argument { argument, .. } if argument == wrong), "{error}");
    }
    for (width, height) in [(400, 200), (10_000, 200), (400, 10_000), (10_000, 10_000)] {
        assert_eq!(elements(&timeline.to_svg(width, height).unwrap())[0].tag, "svg");
    }
}

#[test]
fn changed_fields_do_not_break_it() {
    let device = recording();
    for name in ["a", "b", "c/d"] {
        let _scope = device.scope(name);
        drop(bytes(4096, &device));
    }
    let timeline = timeline(&device);
    for (from, to, depth) in
        [(0, usize::MAX, 0), (usize::MAX, 0, 0), (usize::MAX, usize::MAX, 1), (1, 3, usize::MAX)]
    {
        let mut changed = timeline.clone();
        changed.peak_at = to;
        for phase in changed.scopes.iter_mut().chain(&mut changed.passes) {
            (phase.from, phase.to, phase.depth) = (from, to, depth);
        }
        (changed.limit, changed.workspace_cap) = (Some(0), Some(u64::MAX));
        assert_says(&changed.to_svg(900, 450).unwrap(), "peak 4096 B");
        for live in &mut changed.live {
            Purpose::ALL.into_iter().for_each(|purpose| live[purpose] = u64::MAX);
        }
        // 7 × 16 EiB.
        let svg = changed.to_svg(900, 450).unwrap();
        assert_says(&svg, "peak 112.00 EiB");
        assert_says(&svg, "workspace cap 16.00 EiB");
    }
}
