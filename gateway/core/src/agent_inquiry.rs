//! Requests of kas itself to an agent, which may be connected to any replica.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Limited};
use proto::{ServiceName, header};
use router::RequestClass;
use tunnel::Body;

use crate::{
    agent_locations::KnownAgent,
    destination::Destination,
    forward::{ForwardedResponse, Forwarder},
    proxy::ProxyServer,
};
use access::kill_switch::{KillSwitch, RequestAttributes};

/// The most characters of a message of an agent that are kept.
const MAX_MESSAGE: usize = 300;

/// Asks agents as kas itself, with the rights of agentk. Clones are cheap.
#[derive(Clone, Debug)]
pub struct AgentInquiry {
    forwarder: Forwarder,
    kill_switch: Arc<KillSwitch>,
}

impl AgentInquiry {
    /// Returns an inquiry that sends requests as the server of callers does. It does not wait for agents that are away.
    pub fn new(callers: &ProxyServer) -> Self {
        let forwarder = Forwarder { reconnect_wait: Duration::ZERO, ..callers.forwarder.clone() };
        Self { forwarder, kill_switch: Arc::clone(&callers.kill_switch) }
    }

    /// Sends a GET request to a service of an agent, and returns the body of the response, which has at most `limit` bytes. A rule that
    /// disables the service or the agent ends the request.
    ///
    /// # Errors
    ///
    /// The text is the reason why there is no such response.
    pub async fn get(
        &self,
        agent: &KnownAgent,
        service: &'static str,
        path: &str,
        limit: usize,
    ) -> Result<Bytes, String> {
        let name: ServiceName = service.parse().expect("a constant that is a service name");
        let disabled = self.kill_switch.disabled(RequestAttributes::of_kas(&name, agent.attributes()));
        let destination = Destination {
            agent: agent.id,
            name: Some(agent.name.clone()),
            project_path: agent.project_path.clone(),
            service: name.clone(),
            class: RequestClass::Short,
        };
        let request = Request::get(path).header(header::SERVICE, service).body(Body::empty());
        let request = request.map_err(|_| "the path of this request is too long".to_owned())?;
        let asked = async {
            // The permit counts the request in its tunnel until the body has ended.
            let ForwardedResponse { response, request_permit: _permit, .. } =
                self.forwarder.forward(&destination, request).await.map_err(|error| error.message)?;
            read(response, limit).await
        };
        tokio::select! {
            biased;
            error = disabled => Err(error.message),
            asked = asked => asked,
        }
    }
}

/// Reads a response of an agent, which is not trusted.
async fn read(response: Response<Body>, limit: usize) -> Result<Bytes, String> {
    let (head, body) = response.into_parts();
    if !head.status.is_success() {
        let message = head.headers.get(&header::ERROR_MESSAGE).and_then(|message| message.to_str().ok());
        let message: String = message.unwrap_or_default().chars().take(MAX_MESSAGE).collect();
        return Err(format!("the agent responds {}: {message}", head.status));
    }
    let body = Limited::new(body, limit).collect().await;
    Ok(body.map_err(|error| format!("the response of the agent ended early: {error}"))?.to_bytes())
}
