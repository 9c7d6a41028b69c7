//! A small rasteriser: antialiased strokes with round caps on a grey-level canvas.

use super::{PIXELS, SIDE};

/// A point in pixels; the centre of the top left pixel is (0.5, 0.5).
pub type Point = [f32; 2];

/// A grey-level canvas of 28x28 pixels in 0..=1.
#[derive(Debug, Clone)]
pub struct Canvas {
    pixels: [f32; PIXELS],
}

impl Default for Canvas {
    fn default() -> Self {
        Self { pixels: [0.0; PIXELS] }
    }
}

impl Canvas {
    /// The pixels, row by row.
    pub fn pixels(&self) -> &[f32; PIXELS] {
        &self.pixels
    }

    /// The pixels, row by row, mutable.
    pub fn pixels_mut(&mut self) -> &mut [f32; PIXELS] {
        &mut self.pixels
    }

    /// Draws the segments between consecutive `points`, `width` pixels wide, with darkness `ink`.
    /// Where strokes overlap, the darker value stays, so joints and crossings do not show.
    pub fn polyline(&mut self, points: &[Point], width: f32, ink: f32) {
        for pair in points.windows(2) {
            self.segment(pair[0], pair[1], width, ink);
        }
    }

    fn segment(&mut self, a: Point, b: Point, width: f32, ink: f32) {
        let radius = width / 2.0;
        let reach = radius + 0.5;
        let clamp = |value: f32| value.clamp(0.0, SIDE as f32) as usize;
        let columns = clamp((a[0].min(b[0]) - reach).floor())..clamp((a[0].max(b[0]) + reach).ceil());
        let rows = clamp((a[1].min(b[1]) - reach).floor())..clamp((a[1].max(b[1]) + reach).ceil());
        let (dx, dy) = (b[0] - a[0], b[1] - a[1]);
        let inverse = 1.0 / (dx * dx + dy * dy).max(1e-12);
        for row in rows {
            for column in columns.clone() {
                let (px, py) = (column as f32 + 0.5 - a[0], row as f32 + 0.5 - a[1]);
                // The nearest point of the segment, as a fraction of its length.
                let along = ((px * dx + py * dy) * inverse).clamp(0.0, 1.0);
                let (ex, ey) = (px - along * dx, py - along * dy);
                let distance = (ex * ex + ey * ey).sqrt();
                let cover = (reach - distance).clamp(0.0, 1.0) * ink;
                let pixel = &mut self.pixels[row * SIDE + column];
                *pixel = pixel.max(cover);
            }
        }
    }

    /// The canvas as bytes. 0 is background, and values outside 0..=1 are clipped.
    pub fn to_bytes(&self) -> [u8; PIXELS] {
        self.pixels.map(|value| (value.clamp(0.0, 1.0) * 255.0).round() as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stroke_covers_its_area_and_stays_on_the_canvas() {
        let mut canvas = Canvas::default();
        canvas.polyline(&[[5.0, 14.0], [23.0, 14.0]], 3.0, 1.0);
        // 18 long, 3 wide, plus two half discs of radius 1.5: 54 + 7.07 pixels of ink.
        let ink: f32 = canvas.pixels().iter().sum();
        assert!((ink - 61.0).abs() < 3.0, "{ink}");
        assert_eq!(canvas.to_bytes()[13 * SIDE + 14], 255);
        assert_eq!(canvas.to_bytes()[0], 0);

        canvas.polyline(&[[-100.0, -50.0], [200.0, 90.0], [f32::MAX, 0.0]], 2.0, 1.0);
        canvas.polyline(&[[3.0, 3.0], [3.0, 3.0]], 2.0, 1.0);
        assert!(canvas.pixels().iter().all(|pixel| pixel.is_finite()));
    }
}
