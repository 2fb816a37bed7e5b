-- Reads the replicas.
-- KEYS: replicas. ARGV: prefix of the heartbeat keys, highest number of replicas, greatest length of a heartbeat in bytes.
-- Returns pairs of id and heartbeat; '' if it has expired, '!' if the key has a wrong type.
local ids = redis.pcall('SRANDMEMBER', KEYS[1], ARGV[2])
if ids.err then return {} end
local found = {}
for _, id in ipairs(ids) do
  if #id == 32 then
    local beat = redis.pcall('GETRANGE', ARGV[1] .. id, 0, ARGV[3])
    found[#found + 1] = id
    found[#found + 1] = type(beat) == 'string' and beat or '!'
  end
end
return found
