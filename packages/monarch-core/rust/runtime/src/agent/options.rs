//! The values that the Python side gives to an agent.

/// The values that the Python side gives to the agent.
pub struct AgentOptions {
    pub host: String,
    pub zygote: Vec<String>,
    pub env: Vec<(String, String)>,
    /// The number of last lines of a proc that its end contains.
    pub tail_lines: usize,
    /// The descriptors to which procs' stdout and stderr are written; -1: lines are dropped.
    pub consoles: [libc::c_int; 2],
}
