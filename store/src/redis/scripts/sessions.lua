-- Reads a part of the records of sessions.
-- KEYS: records. ARGV: the first and the last byte.
-- Returns the bytes of each record, '' if there is none.
local found = {}
for i, key in ipairs(KEYS) do
  local stored = redis.pcall('GETRANGE', key, ARGV[1], ARGV[2])
  found[i] = type(stored) == 'string' and stored or ''
end
return found
