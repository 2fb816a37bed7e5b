-- Who lives: pairs of a replica's id and its heartbeat, '' if it has none, '!' if what stands there is no heartbeat.
-- KEYS: replicas. ARGV: what a heartbeat's key begins with, most replicas, most bytes.
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
