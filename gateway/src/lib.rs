//! kas: the server to which agents connect, and through which callers reach their clusters.
//!
//! * [`app`] builds a replica from its [`config`] and its [identity file](access::Identities), runs it and stops it.
//! * `features` has the list of the features, which are crates.
//! * [`cli`] has the commands.
//!
//! The crate [`kas_core`] has a replica without its features, and [`kas_listen`] its listeners.
#![warn(missing_docs)]

pub mod app;
pub mod cli;
pub mod config;
mod features;

/// Parts of a replica, for its tests, benchmarks and fuzz targets.
pub mod test_support {
    use std::{path::Path, sync::LazyLock};

    use crate::app::App;
    use access::Identity;

    pub use crate::cli::serve::log_filter;
    pub use kas_core::{
        agents::{Rebalancer, ReceptiveAgents},
        api::{ApiContext, ApiParts, ApiServer, Query},
        destination::Destination,
        headers::{ProxyHeaders, ResponsePolicy, rewrite_addresses, to_agent, to_caller},
        hosts::{AgentHosts, HostPattern, Route, TlsName},
        request_types::RequestTypes,
        timing::RequestTiming,
        traces::{RequestTrace, Traces},
    };
    pub use kas_listen::{
        addresses::{AddressRules, ForwardedFor, PeerAddress},
        listener::proxy_header,
    };
    pub use strangers::Stranger;

    /// Returns the request types of a replica.
    pub fn request_types() -> RequestTypes {
        static TYPES: LazyLock<RequestTypes> = LazyLock::new(|| {
            let text = "identity: {file: none}";
            let config = settings::parse(Path::new("kas.yaml"), text).expect("it is valid");
            App::new(config, Identity::default()).callers.handling.types.clone()
        });
        TYPES.clone()
    }

    /// The messages of the RPCs of the internal API.
    pub mod api_messages {
        pub use kas_gitlab::rpcs::messages::*;
        pub use kas_graph::views::rpc::*;
        pub use kas_notify::git_push::{GitPushEvent, GitPushEventRequest, Project};
    }
}
