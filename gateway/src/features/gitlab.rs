//! GitLab: its agentk, which connects to kas, and the RPCs that GitLab calls.

mod agentk;
pub(crate) mod rpcs;
mod usage;

pub use self::agentk::GitlabAgentkConfig;
pub(crate) use self::{agentk::GitlabAgentk, usage::UsageReports};
