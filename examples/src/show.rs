//! Images in the terminal.

use std::fmt::Write as _;

use crate::data::{SIDE, Split};
use crate::progress::Guess;

/// The number of images shown side by side: five images of 14 columns fit 80 columns.
const SHOWN: usize = 5;
const GAP: &str = "  ";

/// The indices of a few images to show: some that were classified right, and at the end up to two
/// that were not. `guesses` has one entry for each image of `split`.
pub fn choose(split: &Split, guesses: &[Guess]) -> Vec<usize> {
    let right = |index: &usize| guesses[*index].digit == split.label(*index);
    let wrong: Vec<usize> = (0..split.len()).filter(|index| !right(index)).take(2).collect();
    // The images may be sorted by digit or cycle through the digits. This step size meets several
    // digits in both cases.
    let step = (split.len() / SHOWN).max(1) + 3;
    let mut chosen: Vec<usize> = (0..split.len()).step_by(step).filter(right).collect();
    chosen.truncate(SHOWN - wrong.len());
    chosen.extend(wrong);
    chosen
}

/// The images at `indices` side by side in Braille dots. Under each stand the guess, its
/// probability and, if the guess is wrong, the true digit. `guesses` has one entry for each image
/// of `split`.
pub fn samples(split: &Split, indices: &[usize], guesses: &[Guess]) -> String {
    let mut text = String::new();
    for row in (0..SIDE).step_by(4) {
        for &index in indices {
            for column in (0..SIDE).step_by(2) {
                text.push(braille(split.image(index), row, column));
            }
            text.push_str(GAP);
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    for &index in indices {
        let (guess, label) = (guesses[index], split.label(index));
        let verdict = if guess.digit == label { String::new() } else { format!(" not {label}") };
        let line = format!("{} ({:.0} %){verdict}", guess.digit, guess.share * 100.0);
        // Writing to a string does not fail.
        let _ = write!(text, "{line:^width$}{GAP}", width = SIDE / 2);
    }
    text.truncate(text.trim_end().len());
    text
}

/// Two by four pixels as one character. A pixel becomes a dot if its ink exceeds a third.
fn braille(image: &[u8], row: usize, column: usize) -> char {
    /// The bit of each dot in Unicode's Braille patterns, by row and column.
    const BITS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
    let mut code = 0x2800;
    for (y, bits) in BITS.iter().enumerate() {
        for (x, bit) in bits.iter().enumerate() {
            if image[(row + y) * SIDE + column + x] > 100 {
                code |= bit;
            }
        }
    }
    char::from_u32(code).unwrap_or(' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::PIXELS;

    fn guess(digit: u8, share: f32) -> Guess {
        Guess { digit, share }
    }

    #[test]
    fn shows_images_side_by_side() {
        let mut split = Split::default();
        split.push(&[0; PIXELS], 3);
        split.push(&[255; PIXELS], 4);
        let text = samples(&split, &[0, 1], &[guess(3, 0.5), guess(9, 1.0)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 8);
        assert_eq!(lines[0], format!("{}  {}", "\u{2800}".repeat(14), "\u{28FF}".repeat(14)));
        assert!(lines[7].contains("3 (50 %) ") && lines[7].contains("9 (100 %) not 4"), "{}", lines[7]);
    }

    #[test]
    fn chooses_wrong_ones_last() {
        for count in [0, 1, 2, 7, 100, 2000] {
            let mut split = Split::default();
            (0..count).for_each(|index| split.push(&[0; PIXELS], (index % 10) as u8));
            let mut guesses: Vec<Guess> = (0..count).map(|index| guess((index % 10) as u8, 1.0)).collect();
            let chosen = choose(&split, &guesses);
            assert!(chosen.len() <= SHOWN && chosen.is_empty() == (count == 0), "{count}: {chosen:?}");
            if count > 40 {
                guesses[40].digit = 9;
                let digits: Vec<u8> =
                    choose(&split, &guesses).iter().map(|&index| split.label(index)).collect();
                assert_eq!((digits.len(), digits[SHOWN - 1]), (SHOWN, 0), "{digits:?}");
            }
        }
    }
}
