//! Convolutions, in immediate mode and in find mode.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};

use miopen_sys::*;

use super::{
    BAD, LAST, MISSING, NO_HANDLE, REFUSED, done, floats, handle, miopen, refused, scalar, tensor, unset,
};
use crate::{Rule, Runs, check, looked};

#[derive(Clone, Copy)]
struct Call {
    handle: miopenHandle_t,
    conv: miopenConvolutionDescriptor_t,
    /// Of x, w and y.
    tensors: [miopenTensorDescriptor_t; 3],
    scalars: [*const c_void; 2],
    /// Of the function's last out-pointers.
    size: *mut usize,
    solutions: *mut miopenConvSolution_t,
    requested: c_int,
    returned: *mut c_int,
    results: *mut miopenConvAlgoPerf_t,
}

/// A convolution's descriptor with padding, strides and dilations of these axes.
fn convolution(axes: usize, groups: c_int) -> miopenConvolutionDescriptor_t {
    let (t, mut made, zeros, ones) = (miopen(), null_mut(), [0; 3], [1; 3]);
    let (zeros, ones, mode) = (zeros.as_ptr(), ones.as_ptr(), miopenConvolution);
    unsafe {
        done((t.miopenCreateConvolutionDescriptor)(&mut made));
        done((t.miopenInitConvolutionNdDescriptor)(made, axes as c_int, zeros, ones, ones, mode));
        done((t.miopenSetConvolutionGroupCount)(made, groups));
    }
    made
}

/// The addresses of x, w and y.
const AT: [usize; 3] = [0x100, 0x200, 0x300];

/// A direction: the places of the function's three tensors among x, w and y, in immediate mode and
/// in find mode, and its functions.
struct Direction {
    name: &'static str,
    immediate: [usize; 3],
    find: [usize; 3],
    t: Miopen,
}

macro_rules! of_direction {
    ($own:ident, $forward:ident $data:ident $weights:ident) => {
        match $own.name {
            "Forward" => $own.t.$forward,
            "BackwardData" => $own.t.$data,
            _ => $own.t.$weights,
        }
    };
}

impl Direction {
    fn all() -> [Self; 3] {
        let of = |name, immediate, find| Direction { name, immediate, find, t: miopen() };
        [
            of("Forward", [1, 0, 2], [0, 1, 2]),
            of("BackwardData", [2, 1, 0], [2, 1, 0]),
            of("BackwardWeights", [2, 0, 1], [2, 0, 1]),
        ]
    }

    fn count(&self, c: &mut Call) -> miopenStatus_t {
        let [a, b, out] = self.immediate.map(|place| c.tensors[place]);
        let function = of_direction!(self, miopenConvolutionForwardGetSolutionCount
            miopenConvolutionBackwardDataGetSolutionCount miopenConvolutionBackwardWeightsGetSolutionCount);
        unsafe { function(c.handle, a, b, c.conv, out, c.size) }
    }

    fn solutions(&self, c: &mut Call) -> miopenStatus_t {
        let [a, b, out] = self.immediate.map(|place| c.tensors[place]);
        let function = of_direction!(self, miopenConvolutionForwardGetSolution
            miopenConvolutionBackwardDataGetSolution miopenConvolutionBackwardWeightsGetSolution);
        unsafe { function(c.handle, a, b, c.conv, out, 2, c.size, c.solutions) }
    }

    fn solution_workspace(&self, c: &mut Call) -> miopenStatus_t {
        let [a, b, out] = self.immediate.map(|place| c.tensors[place]);
        let function = of_direction!(self, miopenConvolutionForwardGetSolutionWorkspaceSize
            miopenConvolutionBackwardDataGetSolutionWorkspaceSize
            miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize);
        unsafe { function(c.handle, a, b, c.conv, out, 7, c.size) }
    }

    fn compile(&self, c: &mut Call) -> miopenStatus_t {
        let [a, b, out] = self.immediate.map(|place| c.tensors[place]);
        let function = of_direction!(self, miopenConvolutionForwardCompileSolution
            miopenConvolutionBackwardDataCompileSolution miopenConvolutionBackwardWeightsCompileSolution);
        unsafe { function(c.handle, a, b, c.conv, out, 7) }
    }

    fn immediate(&self, c: &mut Call) -> miopenStatus_t {
        let [a, b, out] = self.immediate.map(|place| c.tensors[place]);
        let [pa, pb, pout] = self.immediate.map(|place| without_provenance_mut(AT[place]));
        let function = of_direction!(self, miopenConvolutionForwardImmediate
            miopenConvolutionBackwardDataImmediate miopenConvolutionBackwardWeightsImmediate);
        unsafe { function(c.handle, a, pa, b, pb, c.conv, out, pout, null_mut(), 0, 7) }
    }

    fn workspace(&self, c: &mut Call) -> miopenStatus_t {
        let [a, b, out] = self.immediate.map(|place| c.tensors[place]);
        let function = of_direction!(self, miopenConvolutionForwardGetWorkSpaceSize
            miopenConvolutionBackwardDataGetWorkSpaceSize miopenConvolutionBackwardWeightsGetWorkSpaceSize);
        unsafe { function(c.handle, a, b, c.conv, out, c.size) }
    }

    fn find(&self, c: &mut Call) -> miopenStatus_t {
        let [a, b, out] = self.find.map(|place| c.tensors[place]);
        let [pa, pb, pout] = self.find.map(|place| without_provenance_mut(AT[place]));
        let function = of_direction!(self, miopenFindConvolutionForwardAlgorithm
            miopenFindConvolutionBackwardDataAlgorithm miopenFindConvolutionBackwardWeightsAlgorithm);
        let (requested, returned, results) = (c.requested, c.returned, c.results);
        unsafe {
            function(
                c.handle,
                a,
                pa,
                b,
                pb,
                c.conv,
                out,
                pout,
                requested,
                returned,
                results,
                null_mut(),
                0,
                false,
            )
        }
    }

    fn run(&self, c: &mut Call) -> miopenStatus_t {
        let ([alpha, beta], none) = (c.scalars, null_mut());
        let [a, b, out] = self.find.map(|place| c.tensors[place]);
        let [pa, pb, pout] = self.find.map(|place| without_provenance_mut(AT[place]));
        macro_rules! run {
            ($function:ident $algorithm:ident) => {
                unsafe {
                    (self.t.$function)(
                        c.handle,
                        alpha,
                        a,
                        pa,
                        b,
                        pb,
                        c.conv,
                        $algorithm(3),
                        beta,
                        out,
                        pout,
                        none,
                        0,
                    )
                }
            };
        }
        match self.name {
            "Forward" => run!(miopenConvolutionForward miopenConvFwdAlgorithm_t),
            "BackwardData" => run!(miopenConvolutionBackwardData miopenConvBwdDataAlgorithm_t),
            _ => run!(miopenConvolutionBackwardWeights miopenConvBwdWeightsAlgorithm_t),
        }
    }
}

#[test]
fn every_direction() {
    let (mut size, mut returned) = (0, 0);
    let none = miopenConvSolution_t {
        time: 0.0,
        workspace_size: 0,
        solution_id: 0,
        algorithm: miopenConvolutionAlgoGEMM,
    };
    let mut solutions = [none; 4];
    let unwritten = miopenConvAlgoPerf_algorithm { fwd_algo: miopenConvFwdAlgorithm_t(-1) };
    let mut results = [miopenConvAlgoPerf_t { algorithm: unwritten, time: 0.0, memory: 0 }; 4];
    let shapes = [&[2, 4, 9, 9], &[6, 4, 3, 3], &[3, 6, 7, 7]];
    let of = |data| shapes.map(|dims| tensor(data, dims));
    let good = Call {
        handle: handle(),
        conv: convolution(2, 1),
        tensors: of(miopenFloat),
        scalars: [scalar(1), scalar(0)],
        size: &raw mut size,
        solutions: solutions.as_mut_ptr(),
        requested: 2,
        returned: &raw mut returned,
        results: results.as_mut_ptr(),
    };
    let (halves, brains, doubles) = (of(miopenHalf), of(miopenBFloat16), of(miopenDouble));
    let deep = [[1, 1, 1, 1, 1]; 3].map(|dims| floats(&dims));
    let (volumes, empty) = (convolution(3, 1), convolution(2, 9));
    let rules: &[Rule<'_, Call, miopenStatus_t>] = &[
        ("no handle", &|c| c.handle = null_mut(), NO_HANDLE),
        ("no convolution", &|c| c.conv = null_mut(), BAD),
        ("f16", &|c| c.tensors = halves, Runs),
        ("bf16", &|c| c.tensors = brains, Runs),
        ("f64", &|c| c.tensors = doubles, MISSING),
        ("two axes for three", &|c| c.conv = volumes, BAD),
        ("three axes for two", &|c| c.tensors = deep, BAD),
        ("three axes", &|c| (c.conv, c.tensors) = (volumes, deep), Runs),
    ];
    let no_size: Rule<'_, Call, miopenStatus_t> = ("no size", &|c| c.size = null_mut(), BAD);
    for d in Direction::all() {
        type Function = fn(&Direction, &mut Call) -> miopenStatus_t;
        let all: [(&str, Function, &str); 8] = [
            ("the count of solutions", Direction::count, "None"),
            ("the solutions", Direction::solutions, "None"),
            ("a solution's workspace", Direction::solution_workspace, "None"),
            ("a solution's compilation", Direction::compile, "None"),
            ("immediate mode", Direction::immediate, "Some([256, 512, 768])"),
            ("the workspace", Direction::workspace, "None"),
            ("find mode", Direction::find, "Some([256, 512, 768])"),
            ("the convolution", Direction::run, "Some([256, 512, 768]) by 3"),
        ];
        for (name, function, at) in all {
            let what = format!("{} {name}", d.name);
            let call = |c: &mut Call| function(&d, c);
            check(&what, good, call, rules);
            for (place, dims) in shapes.into_iter().enumerate() {
                let to = |made: miopenTensorDescriptor_t| move |c: &mut Call| c.tensors[place] = made;
                check(
                    &what,
                    good,
                    call,
                    &[
                        ("no tensor", &to(null_mut()), BAD),
                        ("a tensor without values", &to(unset()), BAD),
                        ("a tensor that the provider can't serve", &to(refused(dims)), REFUSED),
                        ("another rank", &to(floats(&dims[1..])), BAD),
                        ("another type", &to(tensor(miopenHalf, dims)), BAD),
                    ],
                );
            }
            // The tensors arrive as x, w and y in every direction.
            assert_eq!(call(&mut { good }), miopenStatusSuccess);
            assert_eq!(LAST.take(), format!("{} 2 6 3 {at}", d.name), "{what}");
        }
        // A call without an address for the answer fails, perhaps after the provider was asked.
        let answers: [Function; 3] = [Direction::count, Direction::solution_workspace, Direction::workspace];
        for function in answers {
            let mut call = good;
            no_size.1(&mut call);
            assert_eq!(function(&d, &mut call), miopenStatusBadParm, "{}", d.name);
        }
        assert_eq!(d.solutions(&mut Call { size: null_mut(), ..good }), miopenStatusBadParm);
        let solve = |c: &mut Call| d.solutions(c);
        check("the solutions", good, solve, &[("no room", &|c| c.solutions = null_mut(), BAD)]);
        let find = |c: &mut Call| d.find(c);
        check(
            "find mode",
            good,
            find,
            &[
                ("no results wanted", &|c| c.requested = 0, BAD),
                ("one result", &|c| c.requested = 1, Runs),
                ("no count", &|c| c.returned = null_mut(), BAD),
                ("no room", &|c| c.results = null_mut(), BAD),
            ],
        );
        assert_eq!(
            d.find(&mut Call { conv: empty, ..good }),
            miopenStatusNotImplemented,
            "nothing was found"
        );
        check(
            "the convolution",
            good,
            |c: &mut Call| d.run(c),
            &[
                ("no alpha", &|c| c.scalars[0] = null(), BAD),
                ("no beta", &|c| c.scalars[1] = null(), BAD),
                ("alpha of 2", &|c| c.scalars[0] = scalar(2), MISSING),
                ("beta of 1", &|c| c.scalars[1] = scalar(1), MISSING),
            ],
        );
        looked();
        // The results are cut to the room for them.
        for (function, expected) in [
            (Direction::count as Function, 3),
            (Direction::solutions, 2),
            (Direction::solution_workspace, 70),
            (Direction::workspace, 70),
        ] {
            done(function(&d, &mut { good }));
            assert_eq!(unsafe { good.size.read() }, expected, "{}", d.name);
        }
        done(d.workspace(&mut Call { conv: empty, ..good }));
        assert_eq!(unsafe { good.size.read() }, 0, "without a solution, no workspace");
        done(d.find(&mut { good }));
        assert_eq!(unsafe { good.returned.read() }, 2);
        done(d.find(&mut Call { requested: 4, ..good }));
        assert_eq!(unsafe { good.returned.read() }, 3);
    }
    let found = solutions.map(|one| one.solution_id);
    let numbers = results.map(|one| unsafe { one.algorithm.fwd_algo }.0);
    assert_eq!((found, numbers), ([3, 7, 0, 0], [1, 3, 5, -1]));
}
