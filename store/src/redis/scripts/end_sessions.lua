-- Ends one session, or all of a holder.
-- KEYS: the record or the sessions of the holder, all sessions. ARGV: id of the session or '', prefix of the records, prefix of the sets of
-- holders.
-- Returns the number of sessions that have ended.
local ended = 0
if ARGV[1] ~= '' then
  local holder = redis.pcall('GETRANGE', KEYS[1], 0, 31)
  if type(holder) == 'string' and holder ~= '' then redis.pcall('ZREM', ARGV[3] .. holder, ARGV[1]) end
  redis.pcall('ZREM', KEYS[2], ARGV[1])
else
  local ids = redis.pcall('ZRANGE', KEYS[1], 0, -1)
  for _, id in ipairs(ids.err and {} or ids) do
    ended = ended + redis.call('DEL', ARGV[2] .. id)
    redis.pcall('ZREM', KEYS[2], id)
  end
end
local removed = redis.call('DEL', KEYS[1])
return ARGV[1] ~= '' and removed or ended
