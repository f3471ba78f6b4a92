//! Plots as SVG. Black stands for the colour of the text, which the page replaces by its own, light or dark.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;

use super::scale::Ruler;
use super::{Bar, Bars, Lines};

/// Pixels.
const WIDTH: u32 = 760;
const HEIGHT: u32 = 340;
const BAR: u32 = 18;
/// Letters of a group's name that have room beside its bars.
const NAME: usize = 30;

/// Colours that are told apart by most eyes on white and on black, in the order of their use.
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
struct Places {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Places {
    fn new(ruler: &Ruler<'_>) -> Self {
        Self { low: ruler.low, high: ruler.high, ticks: ruler.ticks.clone() }
    }
}

impl Ranged for Places {
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

/// Drawing into a string can fail in theory alone.
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// The plot of curves.
pub(super) fn lines(chart: &Lines) -> String {
    drawn(HEIGHT, |area| draw_lines(area, chart))
}

/// The plot of bars, which lie, so that there is room for their names.
pub(super) fn bars(chart: &Bars) -> String {
    let rows: usize = chart.groups.len() * (chart.series.len().max(1) + 1);
    drawn(70 + BAR * rows.min(1000) as u32, |area| draw_bars(area, chart))
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
        .margin_right(30)
        .x_label_area_size(44)
        .y_label_area_size(78)
        .build_cartesian_2d(Places::new(&x), Places::new(&y))?;
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

fn draw_bars(area: &DrawingArea<SVGBackend<'_>, Shift>, chart: &Bars) -> Drawn {
    let all = chart.groups.iter().flat_map(|group| group.bars.iter().flatten());
    let ends = all.flat_map(|bar| bar.interval.map_or([bar.value; 3], |(low, high)| [low, bar.value, high]));
    let value = Ruler::new(&chart.value, ends, chart.baseline);
    let count = chart.groups.len();
    // The first group is on top; each takes one unit of height.
    let middles: Vec<f64> = (0..count).map(|row| row as f64 + 0.5).collect();
    let name = |middle: f64| {
        let row = count.checked_sub(1 + middle as usize).and_then(|row| chart.groups.get(row));
        row.map_or_else(String::new, |group| shortened(&group.name))
    };
    let mut context =
        ChartBuilder::on(area)
            .margin(12)
            .margin_right(30)
            .x_label_area_size(44)
            .y_label_area_size(210)
            .build_cartesian_2d(Places::new(&value), Places { low: 0.0, high: count.max(1) as f64, ticks: middles })?;
    context
        .configure_mesh()
        .disable_y_mesh()
        .x_desc(clean(&chart.value.label))
        .x_labels(value.ticks.len())
        .y_labels(count.max(1))
        .x_label_formatter(&|place| value.label(*place))
        .y_label_formatter(&|middle| name(*middle))
        .label_style(("sans-serif", 15))
        .bold_line_style(BLACK.mix(0.2))
        .light_line_style(TRANSPARENT)
        .draw()?;
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
    context: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<Places, Places>>,
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

/// A name as it has room.
fn shortened(name: &str) -> String {
    let name = clean(name);
    if name.chars().count() <= NAME { name } else { name.chars().take(NAME - 1).chain(['\u{2026}']).collect() }
}

/// Without what may not stand in XML.
pub(super) fn clean(text: &str) -> String {
    let stands = |c: char| c == '\n' || c == '\t' || !(c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'));
    text.chars().map(|c| if stands(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}
