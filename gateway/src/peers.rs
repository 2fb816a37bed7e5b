//! Other replicas: how this one finds the replica that holds an agent, and sends it requests.
//!
//! ```text
//!  this replica: client                            an owner: server
//!    │  probe: is there a tunnel of agent 42?         │
//!    │───────────────────────────────────────────────►│
//!    │◄──────────────────────── accepted, with a MAC ─│
//!    │  forward: the request                          │
//!    │───────────────────────────────────────────────►│═══► tunnel ═══► agentk
//! ```
//!
//! * **The replica that accepted a request decides where it goes.** An owner responds, forwards it to agentk, or refuses it
//!   without processing it; it never sends it to a third replica.
//! * **A probe has no effects.** If the first owner is slow, the next one gets a probe too, and the first to accept gets the
//!   request.
//! * **A request is sent to authenticated replicas only**: TLS authenticates them, or the MAC of their response to the probe.
//! * An owner that has responded in the last second gets a request without a body and without a probe: if the owner refuses the
//!   request, it comes back complete. So most requests take one round trip.
//!
//! | file | content |
//! |---|---|
//! | `client` | finds an owner with [`PeerClient::find_owner`], and sends it the request with [`OwnerConnection::call`] |
//! | `server` | [`PeerServer`] answers on the private listener |
//! | `auth` | signs requests and responses, and verifies them; `replay` accepts a request once |
//! | `header`, `response` | [`PeerHeader`] and [`ProbeResponse`]: the bytes on the wire; [`PeerError`] |
//! | `connection` | opens connections and keeps them |
//! | `outlier` | a replica that fails is used only after the others for a while |
//! | `health` | [`ReachabilityProbe`]: whether other replicas reach this one |
//! | `config`, `address` | the section `private_api`, and the address that this replica publishes |

mod address;
mod auth;
mod client;
mod config;
mod connection;
mod header;
mod health;
mod outlier;
mod response;
mod server;

pub(crate) use self::config::MAX_CONNECTIONS;
pub use self::{
    address::{NetworkEnv, OwnUrlError, PeerUrl, PeerUrlError},
    auth::{ResponseKey, SignedRequest},
    client::{OwnerConnection, OwnerError, PeerClient},
    config::{PeerConfig, ReplicaContext},
    connection::{ConnectFuture, DriverFuture, PeerConnector, handshake},
    header::{DecodeError, Mac, PEER_HEADER, PeerHeader, PeerRequestKind},
    health::{ProbeSource, ReachabilityError, ReachabilityProbe},
    response::{PeerError, ProbeResponse},
    server::PeerServer,
};
