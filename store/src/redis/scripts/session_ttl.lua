-- Reads the remaining time of a session.
-- KEYS: record.
-- Returns the time in ms, a negative number if there is no session.
return redis.call('PTTL', KEYS[1])
