//! The items of the crate image that burn-vision uses, without file formats. The tests of this
//! workspace build it in place of that crate.

use std::io;
use std::path::Path;

/// Red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rgb<T>(pub [T; 3]);

/// Rows of pixels, from the top.
#[derive(Clone, Debug)]
pub struct RgbImage {
    width: u32,
    height: u32,
    pixels: Vec<[u8; 3]>,
}

impl RgbImage {
    /// A black image.
    pub fn new(width: u32, height: u32) -> Self {
        Self { width, height, pixels: vec![[0; 3]; width as usize * height as usize] }
    }

    /// Sets the pixel in column `x` and row `y`.
    ///
    /// # Panics
    /// If the pixel is outside the image.
    pub fn put_pixel(&mut self, x: u32, y: u32, pixel: Rgb<u8>) {
        assert!(x < self.width && y < self.height, "pixel ({x}, {y}) of {}x{}", self.width, self.height);
        self.pixels[(y * self.width + x) as usize] = pixel.0;
    }

    /// Writes a PPM file, whatever the path's extension.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut file = format!("P6\n{} {}\n255\n", self.width, self.height).into_bytes();
        file.extend(self.pixels.iter().flatten());
        std::fs::write(path, file)
    }
}
