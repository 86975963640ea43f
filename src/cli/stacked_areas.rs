//! A stacked area plot, as SVG and as PNG. Only this file and those of its folder know the plotting crate.

mod axis;
mod legend;

use self::axis::Axis;
use self::legend::Legend;
use crate::error::{Error, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;
use std::fmt::Display;

/// A plot of several series of numbers, none below 0, stacked on each other.
pub struct StackedAreas {
    /// Caption of the plot.
    pub title: String,
    /// Label of the horizontal axis.
    pub x_label: &'static str,
    /// Label of the vertical axis.
    pub y_label: &'static str,
    /// The legend names series i `series_label-i`.
    pub series_label: &'static str,
    /// Horizontal position, and the height of each series there. Positions rise; there is at least one, and all have
    /// the same number of series.
    pub columns: Vec<(u64, Vec<f64>)>,
}

/// Width and height in units. MindFormers' plots have 10 by 4 inches; a unit is 1/100 inch.
const SIZE: (u32, u32) = (1000, 400);
/// Pixels of the PNG per unit.
const PNG_SCALE: u32 = 2;
/// The font family that an SVG names; in a PNG it is the embedded font.
const FAMILY: &str = "sans-serif";
/// Height of letters, in units.
const TEXT: u32 = 13;

/// The plot as the text of an SVG file.
///
/// # Errors
/// The plotting crate fails.
pub fn svg(areas: &StackedAreas) -> Result<String> {
    let mut text = String::new();
    draw(SVGBackend::with_string(&mut text, SIZE), areas, 1)?;
    Ok(text)
}

/// The plot as the bytes of a PNG file.
///
/// # Errors
/// The plotting crate fails.
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

/// Draws the areas with the legend to their right, at `scale` pixels per unit.
fn draw<B: DrawingBackend>(backend: B, areas: &StackedAreas, scale: u32) -> Result<()>
where
    B::ErrorType: 'static,
{
    // The font Hack (Source Foundry, MIT and Bitstream Vera) has all letters that the plots use.
    register_font(FAMILY, FontStyle::Normal, epaint_default_fonts::HACK_REGULAR)
        .map_err(|_| failed("its font is broken"))?;
    let root = backend.into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let legend = Legend::new(series_count(areas));
    let (left, right) = root.split_horizontally(scale * (SIZE.0 - legend.width()));
    draw_areas(&left, areas, scale)?;
    legend.draw(&right, areas.series_label, scale)?;
    root.present().map_err(failed)
}

fn draw_areas<B: DrawingBackend>(plot: &DrawingArea<B, Shift>, areas: &StackedAreas, scale: u32) -> Result<()>
where
    B::ErrorType: 'static,
{
    let sums = running_sums(areas);
    let first = sums.first().map_or(0, |(x, _)| *x);
    // A single position becomes a strip of width 1.
    let last = sums.last().map_or(0, |(x, _)| *x).max(first + 1);
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
        .x_label_formatter(&axis::whole)
        .y_label_formatter(&axis::whole)
        .draw()
        .map_err(failed)?;
    // From the top down: each area covers the lower part of the previous one.
    for series in (0..series_count(areas)).rev() {
        let mut points: Vec<(f64, f64)> =
            sums.iter().map(|(x, heights)| (*x as f64, heights[series])).collect();
        if let [(_, height)] = points[..] {
            points.push((last as f64, height));
        }
        chart.draw_series(AreaSeries::new(points, 0.0, colour(series).filled())).map_err(failed)?;
    }
    Ok(())
}

fn series_count(areas: &StackedAreas) -> usize {
    areas.columns.first().map_or(0, |(_, heights)| heights.len())
}

/// The upper edge of each series at each position.
fn running_sums(areas: &StackedAreas) -> Vec<(u64, Vec<f64>)> {
    let sums = |heights: &[f64]| {
        let running = heights.iter().scan(0.0, |sum, height| {
            *sum += height;
            Some(*sum)
        });
        running.collect()
    };
    areas.columns.iter().map(|(x, heights)| (*x, sums(heights))).collect()
}

/// The colour of series `number`. The hues of neighbours differ by the golden ratio, which keeps them apart for any
/// number of series. The most similar hues are 13, 34 or 55 numbers apart; those are not multiples of 3, so their
/// lightness differs.
fn colour(number: usize) -> HSLColor {
    let hue = (0.58 + 0.618_033_988_749_895 * number as f64).fract();
    HSLColor(hue, 0.55, [0.5, 0.65, 0.38][number % 3])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

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
        // At the left edge the second series has three quarters, at the right edge the first one.
        let (left, right) = (300..340, 1600..1640);
        let ratio = |columns: Range<usize>| {
            share(colour(1), columns.clone()) as f64 / share(colour(0), columns) as f64
        };
        assert!((2.2..3.0).contains(&ratio(left.clone())), "{}", ratio(left));
        assert!((0.33..0.5).contains(&ratio(right.clone())), "{}", ratio(right));
        // Letters are drawn without any font of the system: there are dark pixels in the title's band and in the
        // legend's.
        let dark = |rows: Range<usize>, columns: Range<usize>| {
            let row = |y: usize| columns.clone().map(move |x| 3 * (2000 * y + x));
            rows.flat_map(row).filter(|at| pixels[*at..at + 3].iter().all(|part| *part < 100)).count()
        };
        assert!(dark(0..60, 0..1700) > 200 && dark(60..140, 1774..2000) > 200);
    }

    #[test]
    fn odd_inputs_are_drawn_too() {
        let many: Vec<f64> = (0..160).map(|number| f64::from(number % 7)).collect();
        for plot in
            [areas(&[(5, &[2.0, 1.0])]), areas(&[(1, &[0.0]), (2, &[0.0])]), areas(&[(0, &many), (1, &many)])]
        {
            let text = svg(&plot).unwrap();
            assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
            assert!(!png(&plot).unwrap().is_empty());
        }
        let text = svg(&areas(&[(0, &many)])).unwrap();
        assert!(text.contains("expert-138") && text.contains("and 21 more"), "{text}");
    }

    #[test]
    fn every_one_of_many_experts_has_a_name() {
        for count in [20, 22, 64, 128] {
            let heights = vec![1.0; count];
            let text = svg(&areas(&[(0, &heights), (1, &heights)])).unwrap();
            let names = text.lines().filter(|line| line.starts_with("expert-")).count();
            assert_eq!((names, text.contains(" more")), (count, false), "{count}");
        }
    }

    #[test]
    fn labels_are_whole_numbers() {
        let text = svg(&areas(&[(3, &[1.0, 1.0])])).unwrap();
        let is_fraction = |line: &str| line.contains('.') && line.parse::<f64>().is_ok();
        assert!(!text.lines().any(is_fraction), "{text}");
        assert!(text.lines().any(|line| line == "3") && text.lines().any(|line| line == "4"), "{text}");
    }
}
