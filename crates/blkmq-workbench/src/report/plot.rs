//! Plots as SVG. Black stands for the colour of the text: the page replaces it by its text colour, light or dark.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::scale::Ruler;
use super::{Bar, Bars, Lines};

/// The width of a plot, in pixels.
const WIDTH: u32 = 760;
/// The height of a plot of lines, in pixels.
const HEIGHT: u32 = 340;
/// The height of a bar, in pixels: a line of text and a pixel.
const BAR: u32 = 18;
/// Height of a line of text.
const LINE: u32 = 17;
/// The room next to bars for the names of their groups, in pixels.
const NAMES: u32 = 240;
/// How many letters of middle width fit into one line of this room.
const NAME: f64 = 28.0;
/// The most lines of a name.
const NAME_LINES: usize = 12;
/// Half of the length of the longest number at an axis, in pixels: the last number reaches this far beyond the axis.
const MARGIN: u32 = 48;

/// Colours that most people can tell apart on white and on black, in the order of their use.
pub(super) const COLOURS: [RGBColor; 6] = [
    RGBColor(0x2f, 0x81, 0xc7),
    RGBColor(0xd9, 0x7a, 0x1f),
    RGBColor(0x2a, 0x9d, 0x6f),
    RGBColor(0xc9, 0x4f, 0x7c),
    RGBColor(0x8a, 0x6f, 0xc9),
    RGBColor(0x8c, 0x8c, 0x3a),
];

/// The colour of a line or series of that number.
pub(super) fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

/// An axis for the drawing library: from `low` to `high`, with ticks at certain places.
struct TickAxis {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl TickAxis {
    fn new(ruler: &Ruler<'_>) -> Self {
        Self { low: ruler.low, high: ruler.high, ticks: ruler.ticks.clone() }
    }
}

impl Ranged for TickAxis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let share = (value - self.low) / (self.high - self.low);
        first + (share * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

/// The result of drawing. Drawing into a string can fail only in theory.
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// The plot of curves.
pub(super) fn lines(chart: &Lines) -> String {
    drawn(HEIGHT, |area| draw_lines(area, chart))
}

/// The plot of bars. The bars are horizontal, so that there is room for their names.
pub(super) fn bars(chart: &Bars) -> String {
    let names: Vec<Vec<String>> = chart.groups.iter().map(|group| wrapped(&group.name)).collect();
    let lines = names.iter().map(Vec::len).max().unwrap_or(1) as u32;
    let height = (BAR * (chart.series.len().clamp(1, 100) as u32 + 1)).max(LINE * lines + 4);
    drawn(70 + (height * chart.groups.len() as u32).min(BAR * 1000), |area| draw_bars(area, chart, &names))
}

fn drawn(height: u32, draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Drawn) -> String {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    draw(&area).and_then(|()| Ok(area.present()?)).expect("a string takes what is drawn");
    drop(area);
    svg
}

fn draw_lines(area: &DrawingArea<SVGBackend<'_>, Shift>, chart: &Lines) -> Drawn {
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let x = Ruler::new(&chart.x, points().map(|point| point.0), 0.0);
    let y = Ruler::new(&chart.y, points().map(|point| point.1), 0.0);
    let mut context = ChartBuilder::on(area)
        .margin(12)
        .margin_right(MARGIN)
        .x_label_area_size(44)
        .y_label_area_size(78)
        .build_cartesian_2d(TickAxis::new(&x), TickAxis::new(&y))?;
    context
        .configure_mesh()
        .x_desc(clean(&chart.x.label))
        .y_desc(clean(&chart.y.label))
        .x_labels(x.ticks.len())
        .y_labels(y.ticks.len())
        .x_label_formatter(&|place| x.label(*place))
        .y_label_formatter(&|place| y.label(*place))
        .label_style(("sans-serif", 15))
        .bold_line_style(BLACK.mix(0.2))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (number, line) in chart.lines.iter().enumerate() {
        let places: Vec<(f64, f64)> =
            line.points.iter().filter_map(|point| Some((x.place(point.0)?, y.place(point.1)?))).collect();
        let colour = colour(number);
        if let [only] = places[..] {
            context.draw_series([Circle::new(only, 3, colour.filled())])?;
        } else {
            context.draw_series([PathElement::new(places, colour.stroke_width(2))])?;
        }
    }
    Ok(())
}

fn draw_bars(area: &DrawingArea<SVGBackend<'_>, Shift>, chart: &Bars, names: &[Vec<String>]) -> Drawn {
    let all = || chart.groups.iter().flat_map(|group| group.bars.iter().flatten());
    // Intervals of few measurements are wide. Wide intervals are cut at the end of the axis, whose range follows the
    // values.
    let reach = 2.0 * all().map(|bar| bar.value).filter(|value| value.is_finite()).fold(chart.baseline, f64::max);
    let ends = all().flat_map(|bar| {
        bar.interval.map_or([bar.value; 3], |(low, high)| [low, bar.value, if high > reach { reach } else { high }])
    });
    let value = Ruler::new(&chart.value, ends, chart.baseline);
    let count = chart.groups.len();
    // The first group is on top. Each group takes one unit of height.
    let middles: Vec<f64> = (0..count).map(|row| row as f64 + 0.5).collect();
    let mut context = ChartBuilder::on(area)
        .margin(12)
        .margin_right(MARGIN)
        .x_label_area_size(44)
        .y_label_area_size(NAMES)
        .build_cartesian_2d(TickAxis::new(&value), TickAxis { low: 0.0, high: count.max(1) as f64, ticks: middles })?;
    context
        .configure_mesh()
        .disable_y_mesh()
        .x_desc(clean(&chart.value.label))
        .x_labels(value.ticks.len())
        .y_labels(count.max(1))
        .x_label_formatter(&|place| value.label(*place))
        .y_label_formatter(&|_| String::new())
        .label_style(("sans-serif", 15))
        .bold_line_style(BLACK.mix(0.2))
        .light_line_style(TRANSPARENT)
        .draw()?;
    let style = TextStyle::from(("sans-serif", 15)).pos(Pos::new(HPos::Right, VPos::Center));
    for (row, lines) in names.iter().enumerate() {
        let (x, y) = context.backend_coord(&(value.low, (count - row) as f64 - 0.5));
        for (number, line) in lines.iter().enumerate() {
            let below = LINE as i32 * (2 * number as i32 + 1 - lines.len() as i32) / 2;
            area.draw(&Text::new(line.clone(), (x - 8, y + below), style.clone()))?;
        }
    }
    let start = value.place(chart.baseline).map_or(value.low, |start| start.clamp(value.low, value.high));
    let height = 1.0 / (chart.series.len().max(1) + 1) as f64;
    for (row, group) in chart.groups.iter().enumerate() {
        for (number, bar) in group.bars.iter().enumerate() {
            let top = (count - row) as f64 - height * (0.5 + number as f64);
            if let Some(bar) = bar {
                draw_bar(&mut context, &value, *bar, colour(number), (start, top, height))?;
            }
        }
    }
    Ok(())
}

fn draw_bar(
    context: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<TickAxis, TickAxis>>,
    ruler: &Ruler<'_>,
    bar: Bar,
    colour: RGBColor,
    (start, top, height): (f64, f64, f64),
) -> Drawn {
    let Some(end) = ruler.place(bar.value) else { return Ok(()) };
    context.draw_series([Rectangle::new([(start, top), (end, top - height * 0.9)], colour.filled())])?;
    let Some((low, high)) = bar.interval.and_then(|(low, high)| Some((ruler.place(low)?, ruler.place(high)?))) else {
        return Ok(());
    };
    let at = |share: f64| top - height * share;
    let whiskers = [
        vec![(low, at(0.45)), (high, at(0.45))],
        vec![(low, at(0.2)), (low, at(0.7))],
        vec![(high, at(0.2)), (high, at(0.7))],
    ];
    context.draw_series(whiskers.map(|line| PathElement::new(line, BLACK.stroke_width(2))))?;
    Ok(())
}

/// A name, split into lines that fit. The name is split after blanks and commas, if it has any. The end of a very long
/// name is left out.
fn wrapped(name: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for part in clean(name).split_inclusive([' ', ',', '\n']) {
        let line = lines.last().map_or("", String::as_str);
        if !line.is_empty() && width(line) + width(part.trim_end()) > NAME {
            lines.push(String::new());
        }
        for c in part.chars() {
            let line = lines.last().map_or("", String::as_str);
            if width(line) + width_of(c) > NAME {
                lines.push(String::new());
            }
            lines.last_mut().expect("there is a line").push(c);
        }
    }
    if lines.len() > NAME_LINES {
        lines.truncate(NAME_LINES);
        lines[NAME_LINES - 1] = "\u{2026}".to_owned();
    }
    lines.iter().map(|line| line.trim().to_owned()).collect()
}

fn width(text: &str) -> f64 {
    text.chars().map(width_of).sum()
}

/// The greatest width of a letter, as a multiple of the middle width, in any font that the reader's machine may have.
fn width_of(c: char) -> f64 {
    match c {
        'm' | 'w' | '%' | '@' | 'A'..='Z' => 1.5,
        ' '..='~' => 1.0,
        _ => 2.0,
    }
}

/// The text without characters that are not allowed in XML.
pub(super) fn clean(text: &str) -> String {
    let stands = |c: char| c == '\n' || c == '\t' || !(c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'));
    text.chars().map(|c| if stands(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a name is cut, so that two names that differ only at their ends look the same.
    #[test]
    fn a_name_is_whole_in_lines_that_have_room() {
        let name =
            "B: device=null,irqmode=2,completion_nsec=200us and then a word_of_its_own_that_is_longer_than_a_line";
        let lines = wrapped(name);
        assert_eq!(lines.concat().replace(' ', ""), name.replace(' ', ""));
        assert!(lines.iter().all(|line| width(line) <= NAME), "{lines:?}");
        assert_eq!(lines[..2], ["B: device=null,irqmode=2,", "completion_nsec=200us and"]);
        assert_eq!(wrapped(""), [""]);
        let longest = wrapped(&"MW".repeat(1000));
        assert!(longest.len() == NAME_LINES && longest[NAME_LINES - 1] == "\u{2026}");
    }
}
