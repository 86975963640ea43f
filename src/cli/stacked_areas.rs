//! A plot of areas on top of each other, as SVG and as PNG. The only file that knows the plotting crate.

use crate::error::{Error, Result};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::register_font;
use std::fmt::Display;
use std::ops::Range;

/// Columns of numbers from 0: how high each series stands at each place.
pub struct StackedAreas {
    /// What stands above.
    pub title: String,
    /// What the places are.
    pub x_label: &'static str,
    /// What is counted.
    pub y_label: &'static str,
    /// The legend's name of a series is this and its number.
    pub series_label: &'static str,
    /// Place and heights, one for each series; places rise, at least one.
    pub columns: Vec<(u64, Vec<f64>)>,
}

/// The original's 10 by 4 inches, at 100 units an inch.
const SIZE: (u32, u32) = (1000, 400);
/// Pixels of the PNG to a unit.
const PNG_SCALE: u32 = 2;
/// The family that an SVG names; in a PNG it is the embedded font.
const FAMILY: &str = "sans-serif";
const TEXT: u32 = 13;
/// Marks that an axis has at most between its ends.
const MOST_STEPS: u64 = 10;
/// Names that stand below each other in large letters; where there are more, letters are small.
const LARGE: Legend = Legend { text: TEXT, line: 16, square: 11, column: 130, most_columns: 1 };
const SMALL: Legend = Legend { text: 10, line: 12, square: 8, column: 78, most_columns: 5 };

/// How large a legend is written.
#[derive(Clone, Copy)]
struct Legend {
    text: u32,
    line: u32,
    square: u32,
    column: u32,
    most_columns: u32,
}

impl Legend {
    /// The largest that has a place for each of `count` names.
    fn of(count: usize) -> Self {
        if count <= LARGE.rows() { LARGE } else { SMALL }
    }

    /// Names in a column.
    fn rows(self) -> usize {
        ((SIZE.1 - 60) / self.line) as usize
    }

    /// Columns of `count` names.
    fn columns(self, count: usize) -> u32 {
        (count.div_ceil(self.rows()) as u32).clamp(1, self.most_columns)
    }
}

/// The plot as the text of an SVG file.
///
/// # Errors
/// The plotting crate's.
pub fn svg(areas: &StackedAreas) -> Result<String> {
    let mut text = String::new();
    draw(SVGBackend::with_string(&mut text, SIZE), areas, 1)?;
    Ok(text)
}

/// The plot as the bytes of a PNG file.
///
/// # Errors
/// The plotting crate's.
pub fn png(areas: &StackedAreas) -> Result<Vec<u8>> {
    let (width, height) = (PNG_SCALE * SIZE.0, PNG_SCALE * SIZE.1);
    let mut pixels = vec![0; 3 * (width * height) as usize];
    draw(BitMapBackend::with_buffer(&mut pixels, (width, height)), areas, PNG_SCALE)?;
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(&pixels).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(bytes)
}

fn failed(error: impl Display) -> Error {
    Error::Plan(format!("the plot cannot be drawn: {error}"))
}

fn draw<B: DrawingBackend>(backend: B, areas: &StackedAreas, scale: u32) -> Result<()>
where
    B::ErrorType: 'static,
{
    // Hack (Source Foundry, MIT and Bitstream Vera): its numbers and names are all we write.
    register_font(FAMILY, FontStyle::Normal, epaint_default_fonts::HACK_REGULAR)
        .map_err(|_| failed("its font is broken"))?;
    let root = backend.into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let count = series(areas);
    let size = Legend::of(count);
    let (plot, legend) = root.split_horizontally(scale * (SIZE.0 - size.column * size.columns(count)));
    draw_areas(&plot, areas, scale)?;
    draw_legend(&legend, areas, size, scale)?;
    root.present().map_err(failed)
}

fn draw_areas<B: DrawingBackend>(plot: &DrawingArea<B, Shift>, areas: &StackedAreas, scale: u32) -> Result<()>
where
    B::ErrorType: 'static,
{
    let sums = running_sums(areas);
    let first = sums.first().map_or(0, |(place, _)| *place);
    // One place alone becomes a strip of width 1.
    let last = sums.last().map_or(0, |(place, _)| *place).max(first + 1);
    let highest = sums.iter().filter_map(|(_, heights)| heights.last()).fold(0.0f64, |a, b| a.max(*b)).ceil();
    let text = |size: u32| (FAMILY, scale * size).into_font();
    let mut chart = ChartBuilder::on(plot)
        .caption(&areas.title, text(TEXT + 4))
        .margin(8 * scale)
        .x_label_area_size(40 * scale)
        .y_label_area_size(80 * scale)
        .build_cartesian_2d(Axis::new(first, last), Axis::new(0, (highest as u64).max(1)))
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc(areas.x_label)
        .y_desc(areas.y_label)
        .label_style(text(TEXT))
        .axis_desc_style(text(TEXT))
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .draw()
        .map_err(failed)?;
    // From the top down, so that each area covers what of the last one is below it.
    for series in (0..series(areas)).rev() {
        let mut points: Vec<(f64, f64)> =
            sums.iter().map(|(place, heights)| (*place as f64, heights[series])).collect();
        if let [(_, height)] = points[..] {
            points.push((last as f64, height));
        }
        chart.draw_series(AreaSeries::new(points, 0.0, colour(series).filled())).map_err(failed)?;
    }
    Ok(())
}

/// Squares and names from the top down, column by column; what does not fit is counted.
fn draw_legend<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    areas: &StackedAreas,
    size: Legend,
    scale: u32,
) -> Result<()>
where
    B::ErrorType: 'static,
{
    let rows = size.rows();
    let count = series(areas);
    let places = rows * size.columns(count) as usize;
    let shown = if count <= places { count } else { places - 1 };
    let font = (FAMILY, scale * size.text).into_font();
    let at = |number: usize, x: u32, y: u32| {
        let (column, row) = ((number / rows) as u32, (number % rows) as u32);
        ((scale * (column * size.column + x)) as i32, (scale * (row * size.line + 30 + y)) as i32)
    };
    let name_at = |number: usize| at(number, size.square * 3 / 2 + 1, 1);
    for number in 0..shown {
        let corners = [at(number, 0, 0), at(number, size.square, size.square)];
        area.draw(&Rectangle::new(corners, colour(number).filled())).map_err(failed)?;
        let name = format!("{}-{number}", areas.series_label);
        area.draw(&Text::new(name, name_at(number), font.clone())).map_err(failed)?;
    }
    if shown < count {
        let rest = format!("and {} more", count - shown);
        area.draw(&Text::new(rest, name_at(shown), font)).map_err(failed)?;
    }
    Ok(())
}

fn series(areas: &StackedAreas) -> usize {
    areas.columns.first().map_or(0, |(_, heights)| heights.len())
}

/// The upper edge of every series at every place.
fn running_sums(areas: &StackedAreas) -> Vec<(u64, Vec<f64>)> {
    let sums = |heights: &[f64]| {
        let running = heights.iter().scan(0.0, |sum, height| {
            *sum += height;
            Some(*sum)
        });
        running.collect()
    };
    areas.columns.iter().map(|(place, heights)| (*place, sums(heights))).collect()
}

/// Neighbours differ in hue by the golden ratio, so that no two near ones are alike, however many there are. The nearest
/// hues are then 13, 34 or 55 numbers apart, no multiples of 3: those differ in lightness.
fn colour(number: usize) -> HSLColor {
    let hue = (0.58 + 0.618_033_988_749_895 * number as f64).fract();
    HSLColor(hue, 0.55, [0.5, 0.65, 0.38][number % 3])
}

/// An axis with marks at whole numbers alone.
struct Axis {
    line: RangedCoordf64,
    marks: Vec<f64>,
}

impl Axis {
    fn new(first: u64, last: u64) -> Self {
        Self { line: (first as f64..last as f64).into(), marks: whole_marks(first, last) }
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.line.map(value, limit)
    }

    /// Bold lines at the marks, and no light ones between them.
    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.marks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.line.range()
    }
}

fn whole(number: &f64) -> String {
    format!("{number:.0}")
}

/// Whole numbers from `first` to `last`: multiples of 1, 2 or 5 times a power of ten.
fn whole_marks(first: u64, last: u64) -> Vec<f64> {
    let powers = (0..19).map(|exponent| 10u64.pow(exponent));
    let mut steps = powers.flat_map(|power| [1, 2, 5].map(|digit| power.saturating_mul(digit)));
    let step = steps.find(|step| (last - first) / step <= MOST_STEPS).unwrap_or(u64::MAX);
    (first.div_ceil(step)..=last / step).map(|multiple| (multiple * step) as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn areas(columns: &[(u64, &[f64])]) -> StackedAreas {
        StackedAreas {
            title: "Layer-0".into(),
            x_label: "num of step",
            y_label: "num of token",
            series_label: "expert",
            columns: columns.iter().map(|(place, heights)| (*place, heights.to_vec())).collect(),
        }
    }

    fn decode(bytes: &[u8]) -> (u32, u32, Vec<u8>) {
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
        (info.width, info.height, pixels)
    }

    #[test]
    fn areas_stand_on_each_other() {
        let plot = areas(&[(0, &[1.0, 3.0]), (10, &[3.0, 1.0])]);
        assert_eq!(running_sums(&plot), [(0, vec![1.0, 4.0]), (10, vec![3.0, 4.0])]);
        let (width, height, pixels) = decode(&png(&plot).unwrap());
        assert_eq!((width, height), (2000, 800));
        let share = |colour: HSLColor, columns: Range<usize>| {
            let (r, g, b) = colour.to_backend_color().rgb;
            let row = |y: usize| columns.clone().map(move |x| 3 * (2000 * y + x));
            (0..800).flat_map(row).filter(|at| pixels[*at..at + 3] == [r, g, b]).count()
        };
        // At the left three quarters are the second series, at the right three quarters the first.
        let (left, right) = (300..340, 1600..1640);
        let ratio = |columns: Range<usize>| {
            share(colour(1), columns.clone()) as f64 / share(colour(0), columns) as f64
        };
        assert!((2.2..3.0).contains(&ratio(left.clone())), "{}", ratio(left));
        assert!((0.33..0.5).contains(&ratio(right.clone())), "{}", ratio(right));
        // Letters are drawn without any font of the system: dark pixels in the title's band and in the legend's.
        let dark = |rows: Range<usize>, columns: Range<usize>| {
            let row = |y: usize| columns.clone().map(move |x| 3 * (2000 * y + x));
            rows.flat_map(row).filter(|at| pixels[*at..at + 3].iter().all(|part| *part < 100)).count()
        };
        assert!(dark(0..60, 0..1700) > 200 && dark(60..140, 1774..2000) > 200);
    }

    #[test]
    fn odd_inputs_are_drawn_too() {
        let many: Vec<f64> = (0..512).map(|number| f64::from(number % 7)).collect();
        for plot in
            [areas(&[(5, &[2.0, 1.0])]), areas(&[(1, &[0.0]), (2, &[0.0])]), areas(&[(0, &many), (1, &many)])]
        {
            let text = svg(&plot).unwrap();
            assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
            assert!(!png(&plot).unwrap().is_empty());
        }
        let text = svg(&areas(&[(0, &many)])).unwrap();
        assert!(text.contains("expert-138") && text.contains("and 373 more"), "{text}");
    }

    #[test]
    fn every_one_of_many_experts_has_a_name() {
        for count in [20, 22, 64, 128] {
            let heights = vec![1.0; count];
            let text = svg(&areas(&[(0, &heights), (1, &heights)])).unwrap();
            let names = text.lines().filter(|line| line.starts_with("expert-")).count();
            assert_eq!((names, text.contains(" more")), (count, false), "{count}");
        }
        assert!(SMALL.column * SMALL.most_columns < SIZE.0 / 2, "the areas keep most of the plot");
    }

    #[test]
    fn marks_are_whole_numbers() {
        assert_eq!(whole_marks(1, 3), [1.0, 2.0, 3.0]);
        assert_eq!(whole_marks(0, 11), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(whole_marks(7, 93), [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0]);
        assert_eq!(whole_marks(0, u64::MAX).len(), 10);
        let text = svg(&areas(&[(3, &[1.0, 1.0])])).unwrap();
        let is_fraction = |line: &str| line.contains('.') && line.parse::<f64>().is_ok();
        assert!(!text.lines().any(is_fraction), "{text}");
        assert!(text.lines().any(|line| line == "3") && text.lines().any(|line| line == "4"), "{text}");
    }
}
