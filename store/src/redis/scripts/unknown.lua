-- Reads or writes the mark of an agent token that GitLab does not know.
-- KEYS: mark. ARGV: TTL in ms, or nothing to read it.
-- Returns 1 if there is a mark now, else 0.
if not ARGV[1] then return redis.pcall('GET', KEYS[1]) == '1' and 1 or 0 end
redis.call('SET', KEYS[1], '1', 'PX', ARGV[1])
return 1
