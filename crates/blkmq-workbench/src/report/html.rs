//! The page around tables and plots.

use std::fmt::Write;

use plotters::style::RGBColor;

use super::{Bars, Content, Lines, Report, Section, Table, number, plot};

/// The style of the page: it uses the reader's own light or dark colours, and plots use the colour of the text.
const STYLE: &str = include_str!("style.css");

/// The whole page.
pub(super) fn document(report: &Report) -> String {
    let mut page = String::new();
    let out = &mut page;
    put(out, format_args!("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"));
    put(out, format_args!("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"));
    put(out, format_args!("<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n", escaped(&report.title)));
    put(out, format_args!("<body>\n<h1>{}</h1>\n<dl>\n", escaped(&report.title)));
    put(out, format_args!("<dt>Command</dt><dd><code>{}</code></dd>\n", escaped(&report.command)));
    let version = concat!("blkmq ", env!("CARGO_PKG_VERSION"));
    let facts = [
        ("Machine", &*report.machine),
        ("Date", &report.date),
        ("Version", version),
        ("Measured or modelled", &report.modelled),
    ];
    for (name, text) in facts {
        put(out, format_args!("<dt>{name}</dt><dd>{}</dd>\n", escaped(text)));
    }
    out.push_str("</dl>\n");
    for part in &report.sections {
        section(out, part);
    }
    out.push_str("</body>\n</html>\n");
    page
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a string takes any text");
}

fn section(out: &mut String, section: &Section) {
    put(out, format_args!("<section>\n<h2>{}</h2>\n", escaped(&section.title)));
    if !section.note.is_empty() {
        put(out, format_args!("<p>{}</p>\n", escaped(&section.note)));
    }
    match &section.content {
        Content::Text => {}
        Content::Table(content) => table(out, content),
        Content::Lines(content) => lines(out, &section.title, content),
        Content::Bars(content) => bars(out, &section.title, content),
    }
    out.push_str("</section>\n");
}

fn table(out: &mut String, table: &Table) {
    out.push_str("<table>\n<thead>");
    row(out, "th", table.head.iter());
    out.push_str("</thead>\n<tbody>\n");
    for cells in &table.rows {
        row(out, "td", cells.iter());
    }
    out.push_str("</tbody>\n</table>\n");
}

fn row<'a>(out: &mut String, tag: &str, cells: impl Iterator<Item = &'a String>) {
    out.push_str("<tr>");
    for cell in cells {
        put(out, format_args!("<{tag}>{}</{tag}>", escaped(cell)));
    }
    out.push_str("</tr>\n");
}

fn lines(out: &mut String, title: &str, chart: &Lines) {
    figure(out, title, &plot::lines(chart), chart.lines.iter().map(|line| &*line.name));
    let mut rows = Vec::new();
    for line in &chart.lines {
        let cells = |(x, y): &(f64, f64)| vec![line.name.clone(), number::exact(*x), number::exact(*y)];
        rows.extend(line.points.iter().map(cells));
    }
    let head = vec![String::new(), chart.x.title(), chart.y.title()];
    values(out, &Table { head, rows });
}

fn bars(out: &mut String, title: &str, chart: &Bars) {
    figure(out, title, &plot::bars(chart), chart.series.iter().map(String::as_str));
    let mut rows = Vec::new();
    for group in &chart.groups {
        let cell = |bar: &Option<super::Bar>| match bar {
            None => String::new(),
            Some(bar) => match bar.interval {
                None => number::exact(bar.value),
                Some((low, high)) => {
                    format!("{} ({} to {})", number::exact(bar.value), number::exact(low), number::exact(high))
                }
            },
        };
        rows.push([group.name.clone()].into_iter().chain(group.bars.iter().map(cell)).collect());
    }
    let head = [chart.value.title()].into_iter().chain(chart.series.iter().cloned()).collect();
    values(out, &Table { head, rows });
}

/// A plot, with the meaning of its colours.
fn figure<'a>(out: &mut String, title: &str, svg: &str, names: impl Iterator<Item = &'a str>) {
    let described = format!("<svg role=\"img\" aria-label=\"{}\" ", escaped(title));
    put(out, format_args!("<figure>\n{}", svg.replacen("<svg ", &described, 1)));
    out.push_str("<figcaption><ul class=\"legend\">");
    for (number, name) in names.enumerate() {
        let RGBColor(red, green, blue) = plot::colour(number);
        let colour = format!("#{red:02x}{green:02x}{blue:02x}");
        put(out, format_args!("<li><span style=\"background: {colour}\"></span>{}</li>", escaped(name)));
    }
    out.push_str("</ul></figcaption>\n</figure>\n");
}

/// The numbers of a plot, folded away until the reader opens them.
fn values(out: &mut String, numbers: &Table) {
    out.push_str("<details>\n<summary>The numbers</summary>\n");
    table(out, numbers);
    out.push_str("</details>\n");
}

/// A text as it stands in HTML, in elements and in attributes.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in plot::clean(text).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}
