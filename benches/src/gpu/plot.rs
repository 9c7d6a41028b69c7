//! A picture of the table: for each case, how many times as long each peer takes.

use std::path::Path;

use plotters::prelude::*;

use super::report::{Column, Line};

/// The error if no case has a ratio.
pub(crate) const NO_PEER: &str =
    "--plot draws ratios to a peer: add --torch, --torch-compiled, --flex, --burn-cuda or --compare";

/// The height of a case, in pixels.
const ROW: u32 = 34;

/// Draws horizontal bars on a logarithmic axis, one group for each case. The line at 1 is this
/// backend.
///
/// # Errors
/// If there is no peer to draw, or the file can't be written.
pub(crate) fn bars(path: &Path, lines: &[Line], columns: &[Column]) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let cases: Vec<(&str, Vec<Option<f64>>)> = lines
        .iter()
        .map(|line| {
            let ratio = |(_, values): &Column| line.peer(values).map(|peer| peer / line.seconds);
            (line.name.as_str(), columns.iter().map(ratio).collect::<Vec<_>>())
        })
        .filter(|(_, ratios)| ratios.iter().any(Option::is_some))
        .collect();
    if cases.is_empty() {
        return Err(NO_PEER.into());
    }
    let all = cases.iter().flat_map(|(_, ratios)| ratios.iter().flatten().copied());
    let (least, most) =
        all.fold((1.0f64, 1.0f64), |(least, most), ratio| (least.min(ratio), most.max(ratio)));
    let count = cases.len();
    let area = SVGBackend::new(path, (1000, 90 + ROW * count as u32)).into_drawing_area();
    area.fill(&WHITE).map_err(|error| failed(&error))?;
    let mut chart = ChartBuilder::on(&area)
        .caption("time of each peer / time of burn-rocm (above 1: burn-rocm is faster)", ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(380)
        .build_cartesian_2d((least / 1.2..most * 1.2).log_scale(), 0.0..count as f64)
        .map_err(|error| failed(&error))?;
    // The first case is at the top. Each name stands beside the middle of its bars.
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(count * 2 + 1)
        .y_label_formatter(&|y| {
            let middle = (y.fract() - 0.5).abs() < 1e-6;
            let at = count as f64 - y;
            let case = cases.get(at as usize).filter(|_| middle);
            case.map_or(String::new(), |(name, _)| (*name).to_string())
        })
        .x_label_formatter(&|x| format!("{x:.1}"))
        .draw()
        .map_err(|error| failed(&error))?;
    for (peer, (name, _)) in columns.iter().enumerate() {
        let colour = Palette99::pick(peer).to_rgba();
        let height = 0.8 / columns.len() as f64;
        let rectangles = cases.iter().enumerate().filter_map(|(case, (_, ratios))| {
            let ratio = ratios[peer]?;
            let top = (count - case) as f64 - 0.1 - height * peer as f64;
            Some(Rectangle::new([(1.0, top), (ratio, top - height)], colour.filled()))
        });
        chart
            .draw_series(rectangles)
            .map_err(|error| failed(&error))?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
    }
    let one = [(1.0, 0.0), (1.0, count as f64)];
    chart.draw_series(LineSeries::new(one, BLACK.stroke_width(2))).map_err(|error| failed(&error))?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
        .map_err(|error| failed(&error))?;
    area.present().map_err(|error| failed(&error))
}
