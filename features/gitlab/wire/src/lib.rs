//! The protocol between GitLab's kas and agentk: its messages, their order, and HTTP requests in them. No I/O, except for
//! [`AuthorityFilter`].
//!
//! Both roles are used: kas serves GitLab's agentk, and agentk connects to GitLab's kas. The messages are those of October 2023
//! (version 16.5); a newer end ignores what it does not know, and so does this one.
//!
//! ```text
//!   kas                                                       agentk
//!    │◄── Connect ── Descriptor ────────────────────────────────┤   some of these streams wait for a request
//!    ├── RequestInfo, HttpRequest{Header, Data…, Trailer} ─────►│
//!    │◄── Header, HttpResponse{Header, Data…, Trailer}, Trailer ┤   one stream carries one request
//! ```
#![warn(missing_docs)]

mod authority;
mod http_message;
pub mod messages;
mod order;

pub use self::{
    authority::AuthorityFilter,
    http_message::{
        MalformedHead, UnsupportedRequest, decode_request, decode_response, encode_request, encode_response,
    },
    order::{Order, OrderError},
};

/// The method of the agent that carries requests to the Kubernetes API.
pub const KUBERNETES_METHOD: &str = "/gitlab.agent.kubernetes_api.rpc.KubernetesApi/MakeRequest";
/// The service of [`KUBERNETES_METHOD`].
pub const KUBERNETES_SERVICE: &str = "gitlab.agent.kubernetes_api.rpc.KubernetesApi";
/// The longest message, in bytes.
pub const MAX_MESSAGE: usize = 10 << 20;
/// The longest piece of a body in one message, in bytes.
pub const MAX_CHUNK: usize = 32 << 10;
