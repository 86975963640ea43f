//! The legend: a square and a name for each series.

use super::{FAMILY, SIZE, TEXT, colour, failed};
use crate::error::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

/// The legend of a number of series, in columns beside the plot.
pub(super) struct Legend {
    series: usize,
    style: Style,
}

/// The sizes in which a legend is drawn, in units of the plot.
#[derive(Clone, Copy)]
struct Style {
    /// Height of the letters.
    text: u32,
    /// Distance between two lines.
    line: u32,
    /// Side of a square.
    square: u32,
    /// Width of a column.
    column: u32,
    /// Most columns.
    most_columns: u32,
}

/// For series that fit one column.
const LARGE: Style = Style { text: TEXT, line: 16, square: 11, column: 130, most_columns: 1 };
/// For more series.
const SMALL: Style = Style { text: 10, line: 12, square: 8, column: 78, most_columns: 5 };
/// Space above the first line, and above and below all lines together, in units.
const TOP: u32 = 30;
const MARGINS: u32 = 2 * TOP;

impl Legend {
    /// The legend of `series` series, in the largest style that has room for their names.
    pub fn new(series: usize) -> Self {
        Self { series, style: if series <= LARGE.rows() { LARGE } else { SMALL } }
    }

    /// The width of the legend in units.
    pub fn width(&self) -> u32 {
        self.style.column * self.columns()
    }

    /// Draws squares and names from the top down, column by column, at `scale` pixels per unit. If they do not all fit,
    /// the last line says how many more there are.
    pub fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        series_label: &str,
        scale: u32,
    ) -> Result<()>
    where
        B::ErrorType: 'static,
    {
        let Self { series, style } = *self;
        let rows = style.rows();
        let places = rows * self.columns() as usize;
        let shown = if series <= places { series } else { places - 1 };
        let font = (FAMILY, scale * style.text).into_font();
        let at = |number: usize, x: u32, y: u32| {
            let (column, row) = ((number / rows) as u32, (number % rows) as u32);
            ((scale * (column * style.column + x)) as i32, (scale * (row * style.line + TOP + y)) as i32)
        };
        let name_at = |number: usize| at(number, style.square * 3 / 2 + 1, 1);
        for number in 0..shown {
            let corners = [at(number, 0, 0), at(number, style.square, style.square)];
            area.draw(&Rectangle::new(corners, colour(number).filled())).map_err(failed)?;
            let name = format!("{series_label}-{number}");
            area.draw(&Text::new(name, name_at(number), font.clone())).map_err(failed)?;
        }
        if shown < series {
            let rest = format!("and {} more", series - shown);
            area.draw(&Text::new(rest, name_at(shown), font)).map_err(failed)?;
        }
        Ok(())
    }

    fn columns(&self) -> u32 {
        (self.series.div_ceil(self.style.rows()) as u32).clamp(1, self.style.most_columns)
    }
}

impl Style {
    /// Lines per column.
    fn rows(self) -> usize {
        ((SIZE.1 - MARGINS) / self.line) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_areas_keep_most_of_the_plot() {
        assert!([1, 21, 22, 128, 512].iter().all(|series| Legend::new(*series).width() < SIZE.0 / 2));
    }
}
