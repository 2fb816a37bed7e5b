-- Reads or writes the record of the views of an agent.
-- KEYS: views. ARGV: nothing; or the record, and its TTL in ms.
-- Returns the record, cut after 256 KiB, or '' if there is none.
if ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return ''
end
local stored = redis.pcall('GETRANGE', KEYS[1], 0, 262143)
return type(stored) == 'string' and stored or ''
