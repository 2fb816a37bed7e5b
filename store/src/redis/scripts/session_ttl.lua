-- Reads the remaining time of a session, by the server's clock.
-- KEYS: record, all sessions. ARGV: id.
-- Returns the time in ms, -1 if there is no session.
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends = redis.pcall('ZSCORE', KEYS[2], ARGV[1])
return type(ends) == 'string' and math.max(0, tonumber(ends) - now) or 0
