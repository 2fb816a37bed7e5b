//! The kill switch for the requests of the page that kas itself answers: its lists, and the stream of a tab.
//!
//! Requests to agents go to the proxy, which has its own check.

use std::net::IpAddr;

use access::{AgentAttributes, Grant, kill_switch::RequestAttributes};
use axum::body::Body;
use http::{HeaderValue, Response};
use proto::{ServiceName, header::ERROR};

use super::{WebServer, response::refused};

impl WebServer {
    /// Returns the response with the rule that disables a request, which is about this agent if it is about one.
    pub(super) fn disabled_response(
        &self,
        client: IpAddr,
        grant: &Grant,
        agent: Option<AgentAttributes<'_>>,
    ) -> Option<Response<Body>> {
        let service = service();
        let request = RequestAttributes { agent, ..attributes(client, &service, grant) };
        let error = self.proxy.kill_switch.check(&request).err()?;
        let mut response = refused(&error);
        response.headers_mut().insert(ERROR, HeaderValue::from_static(error.reason.as_str()));
        Some(response)
    }

    /// Completes when a rule disables the requests of a caller. Cancel-safe.
    pub(super) async fn disabled(&self, client: IpAddr, grant: &Grant) {
        let service = service();
        drop(self.proxy.kill_switch.disabled(attributes(client, &service, grant)).await);
    }
}

/// Returns the service of these requests. No rule for a service of callers concerns it.
fn service() -> ServiceName {
    ServiceName::CONTROL.parse().expect("a constant that is a service name")
}

fn attributes<'a>(client: IpAddr, service: &'a ServiceName, grant: &'a Grant) -> RequestAttributes<'a> {
    let (caller, user) = (Some(grant.caller.name()), grant.caller.user.as_deref());
    RequestAttributes { address: Some(client), service, agent: None, caller, user }
}
