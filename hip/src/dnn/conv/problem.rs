//! Convolutions as text: for the trace, the tuning store, and lists of shapes to tune.

use std::fmt::{self, Display};
use std::str::FromStr;

use super::ConvDesc;
use crate::{DType, Error, Result};

/// Which of a convolution's three tensors is computed from the other two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConvDirection {
    /// The output.
    Forward = 0,
    /// The gradient of the input.
    BackwardData = 1,
    /// The gradient of the weights.
    BackwardWeights = 2,
}

/// A convolution in one direction.
///
/// As text: `convolution forward f32 x 64x3x224x224 w 64x3x7x7 stride 2x2 padding 3x3 dilation 1x1
/// groups 1`, then `gradient` and `channels-last` if they are so ([`ConvDesc`]).
///
/// ```
/// use hip::{ConvDirection, ConvProblem};
///
/// let text = "convolution data f16 x 2x8x9x9 w 4x8x3x3 stride 1x1 padding 1x1 dilation 1x1 groups 1 gradient";
/// let problem: ConvProblem = text.parse()?;
/// assert_eq!(problem.direction, ConvDirection::BackwardData);
/// assert_eq!(problem.desc.y, [2, 4, 9, 9]);
/// assert_eq!(problem.to_string(), text);
/// # Ok::<(), hip::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvProblem {
    /// What is computed.
    pub direction: ConvDirection,
    /// Shapes and options.
    pub desc: ConvDesc,
}

const DIRECTIONS: [(&str, ConvDirection); 3] = [
    ("forward", ConvDirection::Forward),
    ("data", ConvDirection::BackwardData),
    ("weights", ConvDirection::BackwardWeights),
];
const BEGIN: &str = "convolution ";
const GRADIENT: &str = "gradient";
const CHANNELS_LAST: &str = "channels-last";

impl ConvProblem {
    /// The problem in a line of text, such as one of the trace; `None` if there is none. What stands
    /// before and after it is ignored.
    pub fn find(line: &str) -> Option<Self> {
        let starts = line.match_indices(BEGIN);
        starts.into_iter().find_map(|(at, _)| read(&line[at..]).map(|(problem, _)| problem))
    }
}

impl Display for ConvProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text(self.direction, &self.desc, f)
    }
}

impl FromStr for ConvProblem {
    type Err = Error;

    /// # Errors
    /// `Invalid` for another text, or for shapes that do not fit together.
    fn from_str(text: &str) -> Result<Self> {
        match read(text) {
            Some((problem, "")) => Ok(problem),
            _ => Err(Error::invalid("conv_problem", "a convolution as `ConvProblem` writes it", text)),
        }
    }
}

/// A problem as text, from its parts.
pub(super) struct Text<'a>(pub(super) ConvDirection, pub(super) &'a ConvDesc);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text(self.0, self.1, f)
    }
}

fn text(direction: ConvDirection, desc: &ConvDesc, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (name, _) = DIRECTIONS[direction as usize];
    write!(f, "{BEGIN}{name} {}", desc.dtype)?;
    let lists = [
        ("x", &desc.x),
        ("w", &desc.w),
        ("stride", &desc.stride),
        ("padding", &desc.padding),
        ("dilation", &desc.dilation),
    ];
    for (name, list) in lists {
        write!(f, " {name} ")?;
        for (i, number) in list.iter().enumerate() {
            write!(f, "{}{number}", if i > 0 { "x" } else { "" })?;
        }
    }
    write!(f, " groups {}", desc.groups)?;
    let flags = [(desc.gradient, GRADIENT), (desc.channels_last, CHANNELS_LAST)];
    flags.iter().filter(|(on, _)| *on).try_for_each(|(_, name)| write!(f, " {name}"))
}

/// The problem at the start of a text, and what follows it.
fn read(text: &str) -> Option<(ConvProblem, &str)> {
    let mut rest = text.strip_prefix(BEGIN)?;
    let mut word = || {
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after;
        word
    };
    let direction = word();
    let direction = DIRECTIONS.iter().find(|(name, _)| *name == direction)?.1;
    let dtype = word();
    let dtype = *ConvDesc::DTYPES.iter().find(|known| known.cpp() == dtype)?;
    let mut lists = Vec::new();
    for name in ["x", "w", "stride", "padding", "dilation"] {
        if word() != name {
            return None;
        }
        lists.push(word().split('x').map(|number| number.parse().ok()).collect::<Option<Vec<usize>>>()?);
    }
    if word() != "groups" {
        return None;
    }
    // In a line of the trace a comma may follow.
    let groups = word();
    let digits = groups.trim_end_matches([',', ';']);
    let mut ended = digits.len() < groups.len();
    let groups = digits.parse().ok()?;
    let [x, w, stride, padding, dilation] = lists.try_into().ok()?;
    let mut desc = ConvDesc::new(dtype, &x, &w, &stride, &padding, &dilation, groups).ok()?;
    for (flag, name) in [(&mut desc.gradient, GRADIENT), (&mut desc.channels_last, CHANNELS_LAST)] {
        let (next, after) = rest.split_once(' ').unwrap_or((rest, ""));
        let bare = next.trim_end_matches([',', ';']);
        if !ended && bare == name {
            (*flag, rest, ended) = (true, after, bare.len() < next.len());
        }
    }
    desc.validate().is_ok().then_some((ConvProblem { direction, desc }, rest))
}

impl ConvDesc {
    /// The dtypes that MIOpen convolves.
    pub const DTYPES: &'static [DType] = super::FLOATS;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(dtype: DType, x: &[usize], w: &[usize], groups: usize) -> ConvProblem {
        let n = x.len() - 2;
        let desc = ConvDesc::new(dtype, x, w, &vec![2; n], &vec![1; n], &vec![1; n], groups).unwrap();
        ConvProblem { direction: ConvDirection::Forward, desc }
    }

    #[test]
    fn a_text_is_its_problem_again_and_each_field_is_in_it() {
        let plain = problem(DType::F32, &[2, 8, 9, 7], &[6, 8, 3, 3], 1);
        let mut all = vec![
            plain.clone(),
            problem(DType::BF16, &[2, 8, 9, 7], &[6, 8, 3, 3], 1),
            problem(DType::F32, &[2, 8, 9, 7], &[6, 4, 3, 3], 2),
            problem(DType::F32, &[3, 8, 9, 7], &[6, 8, 3, 3], 1),
            problem(DType::F16, &[1, 2, 4, 5, 6], &[4, 2, 2, 2, 2], 1),
        ];
        for direction in [ConvDirection::BackwardData, ConvDirection::BackwardWeights] {
            all.push(ConvProblem { direction, ..plain.clone() });
        }
        for (gradient, channels_last) in [(true, false), (false, true), (true, true)] {
            all.push(ConvProblem {
                desc: ConvDesc { gradient, channels_last, ..plain.desc.clone() },
                ..plain
            });
        }
        for (i, problem) in all.iter().enumerate() {
            let text = problem.to_string();
            assert_eq!(text.parse::<ConvProblem>().as_ref(), Ok(problem), "{text}");
            for line in [format!("conv2d f32: call {text}, more"), format!("{text} ms"), format!("a {text}")]
            {
                assert_eq!(ConvProblem::find(&line).as_ref(), Some(problem), "{line}");
            }
            assert!(all[i + 1..].iter().all(|other| other.to_string() != text), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let text = problem(DType::F32, &[2, 8, 9, 7], &[6, 8, 3, 3], 1).to_string();
        for (from, to) in [
            ("convolution", "product"),
            ("forward", "back"),
            ("f32", "f64"),
            ("2x8x9x7", "2x8x9"),
            ("2x8x9x7", "2x8x9x"),
            ("2x8x9x7", "2x7x9x7"),
            ("stride", "step"),
            ("2x2", "0x2"),
            ("groups 1", "groups"),
            ("groups 1", "groups 1 gradients"),
        ] {
            let wrong = text.replacen(from, to, 1);
            assert!(wrong.parse::<ConvProblem>().is_err(), "{wrong}");
        }
        assert_eq!(ConvProblem::find("conv2d f32: nothing launched"), None);
    }
}
