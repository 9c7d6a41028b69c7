//! Calls that a graph has. A rank stays for as long as a graph has one of its calls.

use std::sync::Arc;

use crate::collective::call::Call;
use crate::collective::member::Member;

/// A call of a graph.
pub(super) struct InGraph {
    pub(super) member: Arc<Member>,
    pub(super) call: Call,
}

impl InGraph {
    pub(super) fn new(member: &Arc<Member>, call: Call) -> Self {
        member.enters_graph();
        Self { member: member.clone(), call }
    }
}

impl Drop for InGraph {
    fn drop(&mut self) {
        self.member.leaves_graph();
    }
}
