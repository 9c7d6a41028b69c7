//! How a grid is divided into workgroups and waves.

use crate::dispatch::LaunchError;

/// The lanes of a wave.
pub const LANES: u32 = 32;

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Work-items in each dimension.
    pub grid: [u32; 3],
    /// Work-items of a workgroup in each dimension.
    pub workgroup: [u32; 3],
    /// Workgroups in each dimension; those at the end may be partial.
    pub groups: [u32; 3],
}

impl Geometry {
    /// Checks a launch's dimensions.
    ///
    /// # Errors
    /// [`LaunchError::Invalid`] if a dimension is 0 or a workgroup has more than 1024 work-items.
    pub fn new(dimensions: u16, grid: [u32; 3], workgroup: [u16; 3]) -> Result<Self, LaunchError> {
        if !(1..=3).contains(&dimensions) {
            return Err(LaunchError::Invalid("the number of dimensions is not 1 to 3"));
        }
        let used = |dimension: usize| dimension < usize::from(dimensions);
        let grid = std::array::from_fn(|d| if used(d) { grid[d] } else { 1 });
        let workgroup: [u32; 3] = std::array::from_fn(|d| if used(d) { workgroup[d].into() } else { 1 });
        if grid.contains(&0) || workgroup.contains(&0) {
            return Err(LaunchError::Invalid("a dimension of the grid or of the workgroup is 0"));
        }
        if workgroup.iter().map(|&size| u64::from(size)).product::<u64>() > 1024 {
            return Err(LaunchError::Invalid("a workgroup has more than 1024 work-items"));
        }
        Ok(Self { grid, workgroup, groups: std::array::from_fn(|d| grid[d].div_ceil(workgroup[d])) })
    }

    /// The number of workgroups.
    pub fn group_count(&self) -> u64 {
        self.groups.iter().map(|&count| u64::from(count)).product()
    }

    /// The position of a workgroup in the grid; x runs fastest.
    pub fn group(&self, number: u64) -> [u32; 3] {
        let [x, y, _] = self.groups.map(u64::from);
        [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32]
    }

    /// The waves of a workgroup.
    pub fn waves(&self) -> u32 {
        self.workgroup.iter().product::<u32>().div_ceil(LANES)
    }

    /// The work-item ids of a wave's lanes, and the mask of lanes that exist in the grid.
    pub fn lanes(&self, group: [u32; 3], wave: u32) -> ([[u32; LANES as usize]; 3], u32) {
        let [x, y, z] = self.workgroup;
        let (mut ids, mut mask) = ([[0; LANES as usize]; 3], 0);
        for lane in 0..LANES {
            let item = wave * LANES + lane;
            if item >= x * y * z {
                break;
            }
            let place = [item % x, item / x % y, item / x / y];
            let inside = |d: usize| {
                u64::from(group[d]) * u64::from(self.workgroup[d]) + u64::from(place[d]) < self.grid[d].into()
            };
            if (0..3).all(inside) {
                mask |= 1 << lane;
                for d in 0..3 {
                    ids[d][lane as usize] = place[d];
                }
            }
        }
        (ids, mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_work_item_runs_once() {
        let grid = [5, 3, 4];
        let geometry = Geometry::new(3, grid, [4, 2, 3]).expect("the dimensions are valid");
        assert_eq!(geometry.groups, [2, 2, 2]);
        assert_eq!(geometry.waves(), 1);
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..geometry.group_count() {
            let group = geometry.group(number);
            for wave in 0..geometry.waves() {
                let (ids, mask) = geometry.lanes(group, wave);
                for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
                    let id = |d: usize| group[d] * geometry.workgroup[d] + ids[d][lane];
                    assert!(seen.insert([id(0), id(1), id(2)]));
                }
            }
        }
        let expected = (0..5).flat_map(|x| (0..3).flat_map(move |y| (0..4).map(move |z| [x, y, z])));
        assert_eq!(seen, expected.collect());
    }

    #[test]
    fn a_workgroup_of_1024_has_32_waves() {
        let geometry = Geometry::new(1, [u32::MAX, 0, 0], [1024, 0, 0]).expect("the dimensions are valid");
        assert_eq!((geometry.waves(), geometry.group_count()), (32, 1 << 22));
        // The last workgroup lacks its last work-item.
        assert_eq!(geometry.lanes([(1 << 22) - 1, 0, 0], 31).1, u32::MAX >> 1);
    }

    #[test]
    fn dimensions_are_checked() {
        for (dimensions, grid, workgroup) in [
            (0, [1; 3], [1; 3]),
            (4, [1; 3], [1; 3]),
            (1, [0, 1, 1], [1; 3]),
            (2, [1; 3], [1, 0, 1]),
            (3, [64; 3], [16, 16, 5]),
        ] {
            assert!(Geometry::new(dimensions, grid, workgroup).is_err());
        }
    }
}
