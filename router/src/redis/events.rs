//! Changes from other replicas: what each event invalidates, and which callers it wakes.

use super::{
    Shared,
    client::Connection,
    members::Effect,
    wire::{Event, EventKind},
};

impl Shared {
    /// Handles the payload of one event. An event that cannot be decoded is counted and ignored.
    pub(super) async fn handle_event(&self, connection: &Connection, payload: &[u8]) -> Result<(), String> {
        let event = match Event::decode(payload) {
            Ok(event) => event,
            Err(error) => {
                self.reject("event", &error);
                return Ok(());
            }
        };
        let replica = event.replica;
        if let EventKind::Pushed(pushes) = &event.kind
            && replica != self.replica
        {
            pushes.iter().for_each(|push| self.pushes.send(push.clone()));
        }
        let effect = self.members.lock().handle_event(event);
        match effect {
            Effect::None => {}
            Effect::InvalidateAgents(agents) => {
                for agent in agents {
                    self.cache.invalidate(agent);
                    self.waiters.wake(agent);
                }
            }
            Effect::InvalidateAll => self.invalidate_all(),
            Effect::OtherFleet(fleet) => {
                self.reject("replica", &format!("{replica} belongs to fleet {fleet:?}"));
            }
            Effect::OwnEvent => self.cleanup_dead_replicas(connection).await?,
        }
        Ok(())
    }

    /// Invalidates every cached lookup and wakes every waiting caller.
    pub(super) fn invalidate_all(&self) {
        self.cache.invalidate_all();
        self.waiters.wake_all();
    }
}
