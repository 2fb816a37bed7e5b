//! Questions of replicas to one another, which features ask and answer.
//!
//! The question is JSON in the query of the request, which its MAC covers. The MAC of the response covers the answer, which is its body.

use std::{borrow::Cow, fmt::Debug, time::Duration};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt as _, Limited};
use percent_encoding::percent_decode_str;
use proto::{AgentId, ServiceName, header, percent};
use router::{RequestClass, RequestPermit};
use serde::{Serialize, de::DeserializeOwned};
use store::{Replica, RouteStore};
use tokio::time::timeout;
use tunnel::Body;

use super::{
    PeerClient,
    auth::ResponseKey,
    header::{Mac, PEER_HEADER, PeerHeader, PeerRequestKind},
    response::PeerError,
};
use crate::{destination::Destination, tunnel_entry::TunnelEntry};

/// The time that an answer may take if the question has no other limit, including the time to connect.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The longest answer, in bytes.
const MAX_ANSWER: usize = 4 << 20;
/// The word of the response, which is covered by its MAC. It and the path are from the first questions, which were about recent requests:
/// replicas of other versions know them.
const ANSWER: &str = "recent";
const PATH: &str = "/recent";

/// Lets a feature take part in the requests of other replicas.
pub trait PeerHooks: Debug + Send + Sync {
    /// Answers a question, both as JSON, or returns `None` if the question is that of another feature. The error is for the log of the
    /// other replica.
    fn answer(&self, question: &str) -> Option<BoxFuture<'_, Result<String, &'static str>>>;

    /// Is called before a request with this id is sent into a tunnel.
    fn on_relay(&self, _id: &HeaderValue, _request: &PeerHeader, _tunnel: &RequestPermit<TunnelEntry>) {}
}

impl PeerClient {
    /// Asks all other replicas in the route store at the same time. Returns each replica with its answer.
    pub async fn ask_all<T: DeserializeOwned>(
        &self,
        store: &dyn RouteStore,
        question: &impl Serialize,
    ) -> Vec<(Replica, Result<T, PeerError>)> {
        let others = store.replicas().into_iter().filter(|replica| replica.id != self.replica());
        let asked = others.map(async |replica| {
            let answer = self.ask_one(&replica, question).await;
            (replica, answer)
        });
        futures_util::future::join_all(asked).await
    }

    /// Asks one replica.
    ///
    /// # Errors
    ///
    /// The replica does not answer in time, or not as expected: one of an older version knows no such question.
    pub async fn ask_one<T: DeserializeOwned>(
        &self,
        replica: &Replica,
        question: &impl Serialize,
    ) -> Result<T, PeerError> {
        self.ask_one_within(replica, question, TIMEOUT).await
    }

    /// Asks one replica, which may have to ask another server.
    ///
    /// # Errors
    ///
    /// As [`Self::ask_one`]. `limit` includes the time to connect.
    pub async fn ask_one_within<T: DeserializeOwned>(
        &self,
        replica: &Replica,
        question: &impl Serialize,
        limit: Duration,
    ) -> Result<T, PeerError> {
        let asked = timeout(limit, self.ask(replica, question)).await;
        asked.unwrap_or(Err(PeerError::Timeout))
    }

    /// Asks a replica on a new connection, which needs no place among those of requests.
    async fn ask<T: DeserializeOwned>(
        &self,
        replica: &Replica,
        question: &impl Serialize,
    ) -> Result<T, PeerError> {
        let (tunnel, driver) = self.connect(replica).await?;
        let service: ServiceName = ServiceName::CONTROL.parse().expect("it is a name");
        let no_agent = Destination {
            agent: AgentId(0),
            name: None,
            project_path: None,
            service,
            class: RequestClass::Short,
        };
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = encode(question);
        request.headers_mut().insert(header::SERVICE, HeaderValue::from_static(ServiceName::CONTROL));
        let mac = self.sign(&mut request, PeerRequestKind::Question, replica, &no_agent);
        let asked = async {
            let response = match tunnel.call(request).await {
                Ok(response) if response.headers().get(PEER_HEADER).is_some_and(is_answer) => response,
                // An error, or the response of a replica that does not answer.
                other => {
                    self.check_response(other, mac.as_ref())?;
                    return Err(PeerError::InvalidResponse("it has no answer".to_owned()));
                }
            };
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await;
            let body = body.map_err(|error| PeerError::InvalidResponse(error.to_string()))?.to_bytes();
            let text =
                str::from_utf8(&body).map_err(|error| PeerError::InvalidResponse(error.to_string()))?;
            if let Some(key) = ResponseKey::new(self.secret(), mac.as_ref()) {
                let mac = decode_mac(&head.headers[PEER_HEADER]).ok_or(PeerError::Untrusted)?;
                if !key.verify(&[ANSWER, text], &mac) {
                    return Err(PeerError::Untrusted);
                }
            }
            serde_json::from_str(text).map_err(|error| PeerError::InvalidResponse(error.to_string()))
        };
        tokio::select! {
            answer = asked => answer,
            ended = driver => Err(PeerError::Unreachable(ended.to_string())),
        }
    }
}

/// Returns the target of a request with a question.
fn encode(question: &impl Serialize) -> Uri {
    let json = serde_json::to_string(question).expect("it has keys that are text");
    let target = format!("{PATH}?{}", percent::encode(&json));
    target.parse().expect("it is encoded, and bounded by the request of the reader")
}

/// Returns the question of a request.
pub(super) fn decode(uri: &Uri) -> Option<Cow<'_, str>> {
    let query = uri.query().filter(|_| uri.path() == PATH)?;
    percent_decode_str(query).decode_utf8().ok()
}

/// Returns the response with an answer, with a MAC if there is a key.
pub(super) fn encode_answer(answer: String, key: Option<ResponseKey<'_>>) -> Response<Body> {
    let mac = key.map(|key| BASE64_URL_SAFE_NO_PAD.encode(key.sign(&[ANSWER, &answer]).0));
    let value = format!("v1 {ANSWER} {}", mac.as_deref().unwrap_or("-"));
    let mut response = Response::new(Body::from(answer));
    response.headers_mut().insert(PEER_HEADER, HeaderValue::try_from(value).expect("words are ASCII"));
    response
}

fn is_answer(header: &HeaderValue) -> bool {
    header.to_str().is_ok_and(|text| text.split(' ').nth(1) == Some(ANSWER))
}

fn decode_mac(header: &HeaderValue) -> Option<Mac> {
    let mac = header.to_str().ok()?.split(' ').nth(2)?;
    Some(Mac(BASE64_URL_SAFE_NO_PAD.decode(mac).ok()?.try_into().ok()?))
}
