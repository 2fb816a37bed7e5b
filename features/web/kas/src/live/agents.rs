//! The list of agents in the stream of a tab.

use std::{net::IpAddr, sync::Arc, time::Duration};

use access::Grant;
use bytes::Bytes;
use futures_util::{
    FutureExt as _, Stream, StreamExt as _,
    future::{BoxFuture, pending},
    stream::{self, FuturesUnordered},
};
use tokio::time::{sleep, timeout};

use super::frame::{FrameKind, frame};
use crate::{WebServer, sessions::Session};

/// The pause between two lists, so that a fleet that restarts does not read the route store for each of its tunnels.
const PAUSE: Duration = Duration::from_secs(1);
/// The time after which the list is read without a change of a route: agents may be new in the identity file, and the number of
/// tunnels may have changed.
const REFRESH: Duration = Duration::from_secs(15);

/// Returns a frame with the list of the caller's agents, and one each time that it has changed. While the list cannot be read, the last one
/// stays.
pub(super) fn frames(
    web: Arc<WebServer>,
    session: Arc<Session>,
    grant: Arc<Grant>,
    client: IpAddr,
) -> impl Stream<Item = Bytes> {
    let mut last = Vec::new();
    let lists = stream::unfold(None, move |change: Option<FuturesUnordered<BoxFuture<'static, ()>>>| {
        let (web, session, grant) = (Arc::clone(&web), Arc::clone(&session), Arc::clone(&grant));
        async move {
            if let Some(mut change) = change {
                // An elapsed time is a reason to read the list, too.
                let _ = timeout(REFRESH, change.next()).await;
                drop(change);
                sleep(PAUSE).await;
            }
            let agents = web.logins.agents_of(&session.token, &grant, client).await;
            // Created before the tunnels are listed, so that no change in between is missed.
            let known = agents.iter().flat_map(|agents| &agents.agents);
            let changes = known.map(|agent| web.store.changed(agent.id));
            // Without an agent nothing changes, while an empty set of futures would end at once.
            let change = changes.chain([pending().boxed()]).collect();
            let list = match agents {
                Ok(agents) => {
                    Some(serde_json::to_vec(&web.agents(agents).await).expect("it has keys that are text"))
                }
                Err(error) => {
                    tracing::debug!(%error, "agents of a session not listed");
                    None
                }
            };
            Some((list, Some(change)))
        }
    });
    lists.filter_map(move |list| {
        let list = list.filter(|list| *list != last);
        let changed = list.map(|list| {
            last = list;
            frame(FrameKind::Agents, 0, &last)
        });
        async { changed }
    })
}
