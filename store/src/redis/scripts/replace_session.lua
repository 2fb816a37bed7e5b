-- Replaces the record of a session, which keeps its holder and its TTL.
-- KEYS: record. ARGV: record without the holder.
-- Returns 1, or 0 if there is no session.
local holder = redis.pcall('GETRANGE', KEYS[1], 0, 31)
if type(holder) ~= 'string' or holder == '' then return 0 end
redis.call('SET', KEYS[1], holder .. ARGV[1], 'KEEPTTL')
return 1
