//! The text form of a trace, and its spans.

use wire::Trace;

const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn text_form_is_read_and_written() {
    let trace = Trace::parse(SAMPLED).unwrap();
    assert_eq!(trace, Trace { id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, span: 0x00f0_67aa_0ba9_02b7 });
    assert_eq!(trace.traceparent(), SAMPLED);
    // Fields that a later version appends are ignored.
    assert_eq!(Trace::parse(&SAMPLED.replacen("00", "cc", 1).replace("-01", "-01-what")), Some(trace));
}

#[test]
fn unsampled_trace_is_none() {
    assert_eq!(Trace::parse(&SAMPLED.replace("-01", "-00")), Some(Trace::NONE));
    assert!(Trace::NONE.is_none());
}

#[test]
fn malformed_text_form_is_refused() {
    let zero = ["00-00000000000000000000000000000000-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"];
    let others =
        ["", "00", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"];
    let changed = [SAMPLED.to_uppercase(), SAMPLED.replace('-', "_"), format!("{SAMPLED}-x"), SAMPLED[..54].into(), format!(" {SAMPLED}")];
    for text in zero.into_iter().chain(others).map(String::from).chain(changed) {
        assert_eq!(Trace::parse(&text), None, "{text:?}");
    }
}

#[test]
fn child_is_another_span_of_the_trace() {
    let trace = Trace { id: 5, span: 6 };
    let spans: std::collections::HashSet<u64> = (0..1000)
        .map(|_| trace.child())
        .map(|c| (c.id, c.span))
        .map(|(id, span)| {
            assert_eq!(id, 5);
            span
        })
        .collect();
    assert!(spans.len() == 1000 && !spans.contains(&0));
}
