use super::*;

fn desc(
    x: &[usize],
    w: &[usize],
    stride: usize,
    padding: usize,
    dilation: usize,
    groups: usize,
) -> Result<ConvDesc> {
    let n = x.len() - 2;
    ConvDesc::new(DType::F32, x, w, &vec![stride; n], &vec![padding; n], &vec![dilation; n], groups)
}

#[test]
fn output_shapes() {
    for (x, w, stride, padding, dilation, groups, y) in [
        (&[2, 3, 9, 7][..], &[6, 3, 3, 3][..], 1, 1, 1, 1, &[2, 6, 9, 7][..]),
        (&[2, 8, 9, 7], &[6, 4, 3, 3], 2, 0, 1, 2, &[2, 6, 4, 3]),
        (&[1, 1, 9, 9], &[1, 1, 3, 3], 1, 0, 3, 1, &[1, 1, 3, 3]),
        (&[1, 2, 4, 5, 6], &[4, 2, 2, 2, 2], 2, 1, 1, 1, &[1, 4, 3, 3, 4]),
        (&[0, 2, 4, 4], &[4, 2, 1, 1], 1, 0, 1, 1, &[0, 4, 4, 4]),
    ] {
        assert_eq!(desc(x, w, stride, padding, dilation, groups).unwrap().y, y);
    }
}

#[test]
fn a_convolution_has_a_product_for_each_output_and_weight_of_its_group() {
    let load = desc(&[2, 8, 9, 7], &[6, 4, 3, 3], 2, 0, 1, 2).unwrap().load();
    // [2, 6, 4, 3] outputs, each of 4 channels and 3 x 3 elements.
    assert_eq!(load.flops, 2 * (2 * 6 * 4 * 3) * (4 * 3 * 3));
    assert_eq!(load.bytes, 4 * (2 * 8 * 9 * 7 + 6 * 4 * 3 * 3 + 2 * 6 * 4 * 3));
}

#[test]
fn what_does_not_fit_is_refused() {
    assert!(desc(&[2, 3, 4, 4], &[6, 4, 3, 3], 1, 0, 1, 1).is_err(), "channels");
    assert!(desc(&[2, 4, 4, 4], &[5, 2, 3, 3], 1, 0, 1, 2).is_err(), "groups");
    assert!(desc(&[2, 3, 2, 2], &[6, 3, 3, 3], 1, 0, 1, 1).is_err(), "window");
    assert!(desc(&[2, 3, 4, 4], &[6, 3, 3, 3], 0, 0, 1, 1).is_err(), "stride");
    assert!(desc(&[2, 3, 4], &[6, 3, 3], 1, 0, 1, 1).is_err(), "rank");
    let volume = desc(&[1, 2, 4, 5, 6], &[4, 2, 2, 2, 2], 2, 1, 1, 1).unwrap();
    assert!(ConvDesc { channels_last: true, ..volume }.validate().is_err(), "channels last in 3-D");
    let mut wrong = desc(&[2, 3, 4, 4], &[6, 3, 3, 3], 1, 0, 1, 1).unwrap();
    wrong.y[3] += 1;
    assert!(wrong.validate().is_err());
}

#[test]
fn keys_differ_in_every_field() {
    let base = desc(&[2, 4, 8, 8], &[4, 4, 3, 3], 1, 1, 1, 1).unwrap();
    let others = [
        desc(&[3, 4, 8, 8], &[4, 4, 3, 3], 1, 1, 1, 1).unwrap(),
        desc(&[2, 4, 8, 8], &[8, 4, 3, 3], 1, 1, 1, 1).unwrap(),
        desc(&[2, 4, 8, 8], &[4, 4, 3, 3], 2, 1, 1, 1).unwrap(),
        desc(&[2, 4, 8, 8], &[4, 4, 3, 3], 1, 2, 1, 1).unwrap(),
        desc(&[2, 4, 8, 8], &[4, 4, 3, 3], 1, 1, 2, 1).unwrap(),
        desc(&[2, 4, 8, 8], &[4, 2, 3, 3], 1, 1, 1, 2).unwrap(),
        ConvDesc { dtype: DType::F16, ..base.clone() },
        ConvDesc { gradient: true, ..base.clone() },
        ConvDesc { channels_last: true, ..base.clone() },
    ];
    for (i, a) in others.iter().enumerate() {
        assert_ne!(a, &base);
        assert!(others[i + 1..].iter().all(|b| a != b));
    }
}
