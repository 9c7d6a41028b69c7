//! Loss and accuracy over the steps, as one SVG.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::error::Error;
use crate::progress::{History, Reading};

const SIZE: (u32, u32) = (1000, 420);
const FONT: &str = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif";
const TEXT: RGBColor = RGBColor(40, 44, 52);
const GRID: RGBColor = RGBColor(225, 228, 232);
/// Blue and orange of the Okabe-Ito palette, which colour-blind people can tell apart.
const TRAIN: RGBColor = RGBColor(0, 114, 178);
const TEST: RGBColor = RGBColor(213, 94, 0);

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws the curves of `history` into the file `path`.
///
/// # Errors
///
/// [`Error::File`] when the file cannot be written.
pub fn curves(history: &History, title: &str, path: &Path) -> Result<(), Error> {
    let fail = |error: &dyn std::fmt::Display| Error::file(path, error);
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(|error| fail(&error))?;
    let headline = (FONT, 20).into_font().color(&TEXT);
    let area = area.titled(title, headline).map_err(|error| fail(&error))?;
    let (left, right) = area.split_horizontally(SIZE.0 / 2);
    let loss = |reading: &Reading| f64::from(reading.loss);
    let accuracy = |reading: &Reading| f64::from(reading.accuracy) * 100.0;

    let top = highest(&history.train, loss).max(highest(&history.test, loss)).max(1e-3) * 1.05;
    panel(&left, "loss (nats)", history, loss, (0.0, top)).map_err(|error| fail(&error))?;
    let lowest = history.train.iter().chain(&history.test).map(accuracy).fold(100.0, f64::min);
    let bottom = (lowest / 10.0).floor() * 10.0;
    panel(&right, "accuracy (%)", history, accuracy, (bottom, 100.0)).map_err(|error| fail(&error))?;
    area.present().map_err(|error| fail(&error))
}

/// Writes the readings of `history` as comma-separated values into the file `path`.
///
/// # Errors
///
/// [`Error::File`] when the file cannot be written.
pub fn table(history: &History, path: &Path) -> Result<(), Error> {
    let rows = |split, readings: &[Reading]| -> String {
        let row = |reading: &Reading| {
            format!("{split},{},{:.7},{:.5}\n", reading.step, reading.loss, reading.accuracy)
        };
        readings.iter().map(row).collect()
    };
    let text =
        format!("split,step,loss,accuracy\n{}{}", rows("train", &history.train), rows("test", &history.test));
    std::fs::write(path, text).map_err(|error| Error::file(path, error))
}

fn highest(readings: &[Reading], value: impl Fn(&Reading) -> f64) -> f64 {
    readings.iter().map(value).fold(0.0, f64::max)
}

fn panel(
    area: &Panel<'_>,
    name: &str,
    history: &History,
    value: impl Fn(&Reading) -> f64,
    range: (f64, f64),
) -> Result<(), Box<dyn std::error::Error>> {
    let end = history.train.iter().chain(&history.test).map(|reading| reading.step).max().unwrap_or(1);
    let mut chart = ChartBuilder::on(area)
        .margin(14)
        .margin_right(22)
        .x_label_area_size(42)
        .y_label_area_size(58)
        .build_cartesian_2d(0.0..end as f64, range.0..range.1)?;
    chart
        .configure_mesh()
        .x_desc("step")
        .y_desc(name)
        .x_labels(6)
        .y_labels(6)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(RGBColor(150, 155, 162))
        .label_style((FONT, 13).into_font().color(&TEXT))
        .axis_desc_style((FONT, 14).into_font().color(&TEXT))
        .x_label_formatter(&|step| format!("{step:.0}"))
        .draw()?;

    let points = |readings: &[Reading]| -> Vec<(f64, f64)> {
        readings.iter().map(|reading| (reading.step as f64, value(reading))).collect()
    };
    let train = points(&history.train);
    chart.draw_series(LineSeries::new(train.iter().copied(), TRAIN.mix(0.30).stroke_width(1)))?;
    chart
        .draw_series(LineSeries::new(smooth(&train), TRAIN.stroke_width(2)))?
        .label("training")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], TRAIN.stroke_width(2)));
    let test = points(&history.test);
    chart.draw_series(LineSeries::new(test.iter().copied(), TEST.stroke_width(2)))?;
    chart
        .draw_series(test.iter().map(|&point| Circle::new(point, 4, TEST.filled())))?
        .label("held out")
        .legend(|(x, y)| Circle::new((x + 9, y), 4, TEST.filled()));
    let upper = range.1 - range.0 > 50.0 || range.0 > 0.0;
    chart
        .configure_series_labels()
        .position(if upper { SeriesLabelPosition::LowerRight } else { SeriesLabelPosition::UpperRight })
        .margin(12)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .label_font((FONT, 13).into_font().color(&TEXT))
        .draw()?;
    Ok(())
}

/// A running mean over neighbours, which shows the trend behind the scatter of single readings.
fn smooth(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let reach = points.len() / 20;
    let mean = |index: usize| {
        // Takes the same number on both sides, so that the ends are not shifted.
        let reach = reach.min(index).min(points.len() - 1 - index);
        let window = &points[index - reach..=index + reach];
        window.iter().map(|point| point.1).sum::<f64>() / window.len() as f64
    };
    (0..points.len()).map(|index| (points[index].0, mean(index))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_any_history() {
        let path = std::env::temp_dir().join(format!("burn-rocm-curves-{}.svg", std::process::id()));
        let reading = |step| Reading { step, loss: 2.3 / step as f32, accuracy: 1.0 - 0.9 / step as f32 };
        let full = History { train: (1..100).map(reading).collect(), test: vec![reading(50), reading(99)] };
        let single = History { train: vec![reading(1)], test: vec![reading(1)] };
        for history in [full, single, History::default()] {
            curves(&history, "title", &path).expect("a plot");
            let svg = std::fs::read_to_string(&path).expect("the file");
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            assert!(svg.contains("accuracy (%)") && !svg.contains("NaN"), "{svg}");
        }
        std::fs::remove_file(&path).expect("to remove the file");
        let history = History { train: vec![reading(10)], test: vec![reading(20)] };
        table(&history, &path).expect("a table");
        let rows = std::fs::read_to_string(&path).expect("the file");
        assert_eq!(rows, "split,step,loss,accuracy\ntrain,10,0.2300000,0.91000\ntest,20,0.1150000,0.95500\n");
        std::fs::remove_file(&path).expect("to remove the file");
        let missing = Path::new("/nonexistent/folder/curves.svg");
        assert!(matches!(curves(&History::default(), "title", missing), Err(Error::File { .. })));
    }
}
